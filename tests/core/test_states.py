"""Of every kind of state that tests leave in a warm world: it is put back, or the next test runs elsewhere; and it is named."""

from __future__ import annotations

import re
import sys

import pytest
from lab import FAULTY_SUITES, Ended

from disttest.model import Outcome

sys.path.insert(0, str(FAULTY_SUITES))
from states import LISTS_KEYS, STATES, Fate


@pytest.fixture(scope="module")
def ended(module_lab) -> Ended:
    for name in ("states", "test_states"):
        (module_lab.folder / f"{name}.py").write_text((FAULTY_SUITES / f"{name}.py").read_text())
    seen = module_lab.folder / "seen"
    seen.mkdir()
    return module_lab.run("test_states.py", "--slots", "1", STATES_SEEN=str(seen))


def find(ended: Ended, state, what):
    return ended.result(f"test_state[1xgloo-{state.id}-{what}]")


def pid(ended: Ended, result) -> str:
    return (ended.results / result.ranks[0].log).read_text(errors="replace").split("pid ")[1].split()[0]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.id)
def test_the_next_test_does_not_meet_it(ended, state):
    left, following = find(ended, state, "leaves"), find(ended, state, "next")

    assert Outcome.PASSED is left.outcome, left.message + left.details
    expected = Outcome.FAILED if state.fate is Fate.GIVEN_UP else Outcome.PASSED
    assert expected is following.outcome, following.message
    assert (pid(ended, left) == pid(ended, following)) is (state.fate is not Fate.NEW_WORLD), left.notes
    notes = [note for note in left.notes if re.match(rf"rank 0 leaked {state.note}", note)]
    assert bool(notes) is bool(state.note), left.notes


def test_nothing_else_is_named(ended):
    """A note that is wrong is worse than none."""
    for state in STATES:
        following = find(ended, state, "next")
        assert () == following.notes, (state.id, following.notes)
        if not state.note:
            assert () == find(ended, state, "leaves").notes, state.id


def test_sixty_kinds_and_few_given_up():
    fates = [state.fate for state in STATES]

    assert len(fates) >= 60
    assert fates.count(Fate.GIVEN_UP) <= (2 if LISTS_KEYS else 5)
