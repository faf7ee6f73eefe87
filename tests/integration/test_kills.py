"""SIGKILL to any level of a run at any moment, and to two or three at once: no process and no shared memory is left.

A trial is one run with four such moments: three hit what a run outlives (a world, a rank, a daemon that a test has started),
the last one any level, the command and the controller among them. Two trials; ``make soak`` has hundreds of kills
(``--trials``). A failure names its seed: ``--seed`` repeats it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import psutil
from hostile.state import left_names
from lab import Ended, Lab

from disttest.model import Outcome
from disttest.plugins.leftovers.segments import LEDGER, Made

LIMIT_S = 600.0
"""For a run to come up, and to end, which take seconds on a machine of their own."""
GONE_LIMIT_S = 60.0
"""From the kill of a command to the end of the last process."""
OUTLIVED = ("world", "rank", "daemon")
"""Levels whose end a run outlives."""
KILLS = 4
TESTS = """
    import multiprocessing.resource_tracker, multiprocessing.shared_memory, os, subprocess, time, uuid
    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)
    KEPT = []

    def misbehave():
        name = f"psm_{uuid.uuid4().hex[:8]}"
        print("LEFT", name, flush=True)  # before it is: whoever is killed in between leaves a name that the trial can remove
        segment = multiprocessing.shared_memory.SharedMemory(name, create=True, size=1 << 16)
        multiprocessing.resource_tracker.unregister(segment._name, "shared_memory")
        KEPT.append(segment)
        if os.fork() == 0:  # a daemon that nobody can tell from one that init has started
            os.setsid()
            subprocess.Popen(["sleep", "600"])
            os._exit(0)

    @pytest.mark.fresh_world
    @pytest.mark.parametrize("number", range(20))
    def test_fresh(world, number):
        misbehave()
        time.sleep(1.0)
        dist.barrier()

    @pytest.mark.parametrize("number", range(20))
    def test_warm(world, number):
        misbehave()
        time.sleep(0.5)
        dist.barrier()
"""


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        first, trials = (metafunc.config.getoption(name) for name in ("--seed", "--trials"))
        metafunc.parametrize("seed", range(first, first + trials) if trials else (3, 8))


def processes_of(token: str) -> dict[psutil.Process, str]:
    """Those that live of everything that a run has started, wherever they are in the tree, with their names."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it may end at any moment
            if token.encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
                found[process] = process.name()
    return found


def pytests_below(pid: int) -> list[int]:
    """Children that are pytest processes or forks of one."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                found += [child.pid] if "pytest" in child.cmdline() else []
    return found


def levels_of(command: subprocess.Popen[str], token: str) -> dict[str, list[int]]:
    """The processes of each level that there are."""
    levels: dict[str, list[int]] = {"command": [command.pid]}
    for above, level in itertools.pairwise(("command", "controller", "world", "rank")):
        levels[level] = [pid for parent in levels[above] for pid in pytests_below(parent)]
    levels["daemon"] = [process.pid for process, name in processes_of(token).items() if name == "sleep"]
    return {level: pids for level, pids in levels.items() if pids}


def kill_some(levels: Mapping[str, Sequence[int]], chance: random.Random) -> dict[str, int]:
    """SIGKILL one process of each of up to three levels; their pids."""
    chosen = chance.sample(sorted(levels), min(len(levels), chance.randint(1, 3)))
    victims = {level: chance.choice(levels[level]) for level in chosen}
    for pid in victims.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return victims


def wait_for_worlds(command: subprocess.Popen[str], token: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while "sleep" not in processes_of(token).values():
        assert command.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.05)


def noted(lab: Lab) -> set[str]:
    """Shared memory that a run knows for its own by now: what is in its ledger, and what tests that passed have left."""
    ended = Ended(0, "", lab.folder / "results")
    ledger = ended.results / LEDGER
    lines = ledger.read_bytes().splitlines() if ledger.exists() else []
    whole = [msgspec.json.decode(line, type=Made) for line in lines if line.endswith(b"}")]
    passed = [
        test.final for test in ended.run.tests if test.attempts and test.final.outcome is Outcome.PASSED
    ]
    logs = [ended.results / rank.log for result in passed for rank in result.ranks]
    left = [line for log in logs for line in log.read_text().splitlines() if line.startswith("LEFT ")]
    return {made.entry.name for made in whole} | {line.split()[1] for line in left}


def end_of(command: subprocess.Popen[str], token: str, *, killed: bool) -> str:
    """Wait until a run has ended, and what survived its end has had the time to go; the output."""
    output, _ = command.communicate(timeout=LIMIT_S)
    deadline_s = time.monotonic() + (GONE_LIMIT_S if killed else 0.0)
    while processes_of(token) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return output


def test_nothing_is_left_whoever_is_killed(lab, seed):
    chance, token = random.Random(seed), f"STATE_TRIAL={uuid.uuid4().hex}"
    command = lab.write(test_x=TESTS).start("test_x.py", "--slots", "4", **dict([token.split("=")]))
    killed: list[dict[str, int]] = []
    known: set[str] = set()
    try:
        wait_for_worlds(command, token)
        while len(killed) < KILLS and command.poll() is None:
            time.sleep(chance.uniform(0.0, 1.5))
            levels = levels_of(command, token)
            if len(killed) < KILLS - 1:
                levels = {level: pids for level, pids in levels.items() if level in OUTLIVED}
            known = noted(lab)
            killed.append(kill_some(levels, chance))
        print(f"{sum(map(len, killed))} killed: {killed}")
        last = killed[-1].keys()
        output = end_of(command, token, killed=bool(last & {"command", "controller"}))
        left = [f"{process.pid} {name}" for process, name in processes_of(token).items()]
        assert left == [], f"killed: {killed}; left: {left}\n{output}"
        there = [name for name in known if Path("/dev/shm", name).exists()]
        assert "command" in last or there == [], f"killed: {killed}; left: {there}\n{output}"
    finally:
        for process in processes_of(token):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        command.wait()
        for path in (Path("/dev/shm", name) for name in left_names(Ended(0, "", lab.folder / "results"))):
            path.unlink(missing_ok=True)
