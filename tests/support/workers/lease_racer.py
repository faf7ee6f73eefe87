"""Takes and frees leases until it is killed, and writes each take and free into a log shared with others.

Arguments: lease directory, log, NVML library, seed, name of the runner.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from disttest.plugins.gpus.detect import detect_machine
from disttest.plugins.gpus.leases.lease import Leaser, Request


def main() -> None:
    directory, log, library, seed, runner = sys.argv[1:]
    machine = detect_machine(library=library, root=Path("/nonexistent"))
    chance = random.Random(int(seed))
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(word: str, slots=()) -> None:
        # In one write; what is logged lies inside the time that the lock is held.
        rest = f"{time.monotonic():.6f} {runner}\n"
        uuids = [slot.uuid for slot in slots] or ["-"]
        os.write(out, "".join(f"{word} {os.getpid()} {uuid} {rest}" for uuid in uuids).encode())

    class LoggingLeaser(Leaser):
        def _join(self, request):
            write("ask")
            ticket = super()._join(request)
            write("join")
            return ticket

    leaser = LoggingLeaser(Path(directory), lambda: machine)
    while True:
        with leaser.take(Request(count=chance.choice((1, 1, 1, 2, 4, 8)), who=runner)) as lease:
            write("take", lease.slots)
            time.sleep(chance.uniform(0, 0.02))
            write("free", lease.slots)


main()
