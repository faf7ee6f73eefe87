"""Sixteen processes of four runners contend for eight GPUs for ten seconds, and are killed at random."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import fake_driver as fakes
import pytest

from disttest.plugins.gpus.leases.lease import Leaser, Request

RACER = Path(__file__).parents[1] / "support" / "workers" / "lease_racer.py"
PROCESSES, RUNNERS, SECONDS = 16, 4, 10.0
ENOUGH = 4 * 8
"""Every runner has had every GPU."""


class Race:
    """Keeps sixteen racers running, and remembers when it killed which."""

    def __init__(self, tmp_path, library, seed):
        self.chance = random.Random(seed)
        self.log = tmp_path / "log"
        self.arguments = [sys.executable, str(RACER), str(tmp_path / "leases"), str(self.log), str(library)]
        self.killed_at = {}
        self.racers = [self.start(number) for number in range(PROCESSES)]

    def start(self, number):
        seed, runner = str(self.chance.random())[2:], f"runner-{number % RUNNERS}"
        return subprocess.Popen([*self.arguments, seed, runner])

    def kill(self, number):
        racer = self.racers[number]
        assert racer.poll() is None, "a racer left by itself"
        self.killed_at[racer.pid] = time.monotonic()
        racer.kill()
        racer.wait()

    def run(self):
        started_s = time.monotonic()
        # On a busy machine ten seconds may see few leases: it goes on until there was a race to speak of.
        while time.monotonic() - started_s < SECONDS or len(self.kinds()) < ENOUGH:
            assert time.monotonic() - started_s < 120.0, "hardly any lease in two minutes"
            time.sleep(self.chance.uniform(0.05, 0.4))
            victim = self.chance.randrange(PROCESSES)
            self.kill(victim)
            self.racers[victim] = self.start(victim)
        for number in range(PROCESSES):
            self.kill(number)

    def lines(self):
        # The last line may be half written.
        for line in self.log.read_text().rpartition("\n")[0].splitlines() if self.log.exists() else ():
            word, pid, uuid, at, runner = line.split()
            yield word, int(pid), uuid, float(at), runner

    def kinds(self):
        """The different (runner, GPU) pairs seen so far."""
        return {(runner, uuid) for word, _, uuid, _, runner in self.lines() if word == "take"}

    def spans(self):
        """UUID -> (start, end) of each lease; a killed holder held until it was killed, at the least."""
        spans, open_spans = defaultdict(list), {}
        for word, pid, uuid, at, _ in self.lines():
            if word == "take":
                open_spans[pid, uuid] = at
            elif word == "free":
                spans[uuid].append((open_spans.pop((pid, uuid)), at))
        for (pid, uuid), start in open_spans.items():
            spans[uuid].append((start, self.killed_at[pid]))
        return spans

    def waits(self):
        """(asked, in line, served or killed) of each request."""
        waits, asked, joined = [], {}, {}
        for word, pid, _, at, _ in self.lines():
            if word == "ask":
                asked[pid] = at
            elif word == "join":
                joined[pid] = at
            elif word == "take" and pid in joined:
                waits.append((asked.pop(pid), joined.pop(pid), at))
        return waits, [(asked[pid], joined[pid], self.killed_at[pid]) for pid in joined]


@pytest.mark.parametrize("seed", [1])
def test_never_double_booked_never_starved_all_freed(fake, detect, tmp_path, seed):
    driver = fake(fakes.eight_h100())
    race = Race(tmp_path, driver.library, seed)
    try:
        race.run()
    finally:
        for racer in race.racers:
            racer.kill()
            racer.wait()

    spans, (served, killed) = race.spans(), race.waits()
    assert len(spans) == 8
    for uuid, held in spans.items():
        held.sort()
        overlaps = [(one, two) for one, two in itertools.pairwise(held) if two[0] < one[1]]
        assert not overlaps, f"{uuid} was held twice"
    # Nobody is overtaken by one who came later, but for the moment that a busy machine takes to log it.
    for _, joined, ended in [*served, *killed]:
        overtaken = [late for late in served if late[0] > joined and late[2] < ended - 1.0]
        assert not overtaken, f"who stood in line at {joined} was overtaken by {overtaken}"

    machine = detect(driver)
    with Leaser(tmp_path / "leases", lambda: machine).take(Request(count=8, timeout_s=5.0)) as lease:
        assert len(lease.slots) == 8
    assert not list((tmp_path / "leases").glob("*.ticket"))
    longest_s = max(ended - asked for asked, _, ended in served)
    print(f"{len(served)} leases, {len(race.killed_at)} kills, longest wait {longest_s:.2f} s")
