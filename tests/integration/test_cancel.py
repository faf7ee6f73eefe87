"""Signals to the command's pid alone, at random moments of a run: reports at once, the right code, no orphan.

Ten trials; `make soak` has a hundred and more (``--trials``). A failure names its seed: ``--seed`` repeats it.
"""

from __future__ import annotations

import random
import signal
import time

import pytest
from lab import Ended

from disttest.host.descendants import children_of
from disttest.model import Outcome

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TESTS = """
    import time, pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    @pytest.mark.parametrize("number", range(200))
    def test_warm(world, number):
        dist.barrier()
        time.sleep(0.02)

    @pytest.mark.fresh_world
    @pytest.mark.parametrize("number", range(200))
    def test_fresh(world, number):
        dist.barrier()

    @pytest.mark.timeout(2)
    @pytest.mark.parametrize("number", range(40))
    def test_hangs(world, number):
        if world.rank == 1:
            time.sleep(600)
        dist.barrier()

    @pytest.mark.parametrize("number", range(40))
    def test_crashes(world, number):
        assert world.rank == 0
        dist.barrier()
"""
LONGEST_S = 12.0
"""The run lasts longer; torch is imported in the first seconds."""


def pytest_generate_tests(metafunc):
    if "moment" in metafunc.fixturenames:
        seed, trials = (metafunc.config.getoption(name) for name in ("--seed", "--trials"))
        trials, chance = trials or 10, random.Random(seed)
        # Half of them before or while the first worlds start; from the very first instant of Python on.
        moments = [chance.uniform(0.4, 4.0 if number % 2 else LONGEST_S) for number in range(trials)]
        metafunc.parametrize("moment", moments, ids=lambda moment: f"{seed}-{moment:.3f}s")


def test_cancel_at_any_moment(lab, moment, request):
    signum = SIGNALS[int(moment * 1000) % len(SIGNALS)]
    process = lab.write(test_many=TESTS).start("test_many.py", "--slots", "4")
    time.sleep(moment)
    assert process.poll() is None

    process.send_signal(signum)
    output, _ = process.communicate(timeout=60)  # how long it takes: bench/kill.py
    ended = Ended(process.returncode, output, lab.folder / "results")

    if not _was_guarded(ended):
        # So early that Python itself was still starting: the signal has ended it.
        assert ended.exit_code in (-signum, 128 + signum), output
        return
    assert 128 + signum == ended.exit_code, output
    run = ended.run
    assert f"the run was cancelled by {signum.name}" == run.reason
    cases = list(ended.junit().iter("testcase"))
    assert len(run.tests) == len(cases)
    assert all(test.final.message for test in run.tests if test.final.outcome is Outcome.ERROR)
    assert (ended.results / "summary.md").exists()
    assert set() == {pid for pid in children_of() if pid not in request.node.stash.get(BEFORE, set())}


BEFORE = pytest.StashKey[set[int]]()


@pytest.fixture(autouse=True)
def note_children(request, lab):
    request.node.stash[BEFORE] = children_of()


def _was_guarded(ended: Ended) -> bool:
    return (ended.results / "events.jsonl").exists()
