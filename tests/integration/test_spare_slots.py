"""A run uses the processors that its worlds leave idle; the processors' own word is put in its mouth."""

from __future__ import annotations

from lab import Ended, Lab

from disttest.results.fold import RunResult

SAYS = """
    from disttest.host.idle_processors import Idleness, IdleProcessors

    IdleProcessors.read = lambda self: Idleness(idle=2, stalled=0)
"""
MEET = """
    import time
    from pathlib import Path

    import pytest

    @pytest.mark.world_size(2)
    @pytest.mark.fresh_world
    @pytest.mark.timeout({limit_s})
    @pytest.mark.parametrize("name, other", ["ab", "ba"])
    def test_meets(world, name, other):
        Path(name).touch()
        while not Path(other).exists():
            time.sleep(0.01)
"""


def meeting(lab: Lab, *arguments: str, limit_s: float) -> Ended:
    lab.write(conftest=SAYS, test_meet=MEET.format(limit_s=limit_s))
    (lab.folder / "pytest.ini").write_text("[pytest]\n")
    return lab.run("test_meet.py", *arguments)


def overlap(run: RunResult) -> bool:
    first, second = sorted(run.worlds, key=lambda world: world.started_at_s)[:2]
    return second.started_at_s < first.ended_at_s


def test_worlds_that_wait_leave_room_for_another(lab):
    ended = meeting(lab, limit_s=240)

    assert 0 == ended.exit_code, ended.output
    assert overlap(ended.run)
    assert 4 <= ended.run.slots


def test_slots_that_are_counted_are_law(lab):
    ended = meeting(lab, "--slots", "2", limit_s=2)

    assert 1 == ended.exit_code, ended.output
    assert 2 == ended.run.slots
    assert not overlap(ended.run)
