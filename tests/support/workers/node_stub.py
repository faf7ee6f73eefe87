"""An agent that does nothing but what a test of launchers needs: ``echo``, ``hold SECONDS``, ``exit CODE``."""

from __future__ import annotations

import os
import sys
import time

import msgspec

from disttest.extras.cluster.node.assignment import find_assignment
from disttest.extras.cluster.protocol.wire import (
    CancelJob,
    FinishJob,
    LineWriter,
    NodeDone,
    NodeNote,
    NodeReady,
    SetVariables,
    StillHere,
    TakeJob,
    Versions,
    decode_order,
)


def main() -> int:
    mode, *values = sys.argv[1:]
    place = find_assignment(os.environ)
    writer = LineWriter(place.node)

    def say(message: object) -> None:
        os.write(1, writer.lines(msgspec.json.encode(message)))

    for line in sys.stdin.buffer:
        order = decode_order(line)
        if isinstance(order, TakeJob):
            versions = Versions(disttest="0", python="0", torch="0")
            say(
                NodeReady(
                    host=place.host, at_s=time.monotonic(), versions=versions, digest="", gpus=place.gpus
                )
            )
            if mode == "exit":
                return int(values[0])
            if mode == "hold":
                time.sleep(float(values[0]))
                say(NodeNote(message=str(time.monotonic())))
                say(NodeDone())
                return 0
        elif isinstance(order, FinishJob | CancelJob):
            say(NodeDone(reason=getattr(order, "reason", "")))
            return 0
        elif not isinstance(order, SetVariables | StillHere):
            say(NodeNote(message=line.decode()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
