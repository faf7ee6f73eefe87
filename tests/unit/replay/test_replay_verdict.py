import msgspec
import pytest

from disttest.extras.replay.replay_verdict import RecordedOutcome, Replayed, judge
from disttest.model import Outcome

PASSED = RecordedOutcome(recording="", outcome=Outcome.PASSED, message="")
FAILED = RecordedOutcome(recording="", outcome=Outcome.FAILED, message="ValueError: boom")
ENDED = RecordedOutcome(recording="", outcome=None, message="was ended by disttest")
SEEN = Replayed(outcome=Outcome.PASSED, message="", calls=3)
BOOM = Replayed(outcome=Outcome.FAILED, message="ValueError: boom", calls=3)


def seen(**changed):
    return msgspec.structs.replace(SEEN, **changed)


@pytest.mark.parametrize(
    ("expected", "replayed", "words", "is_same"),
    [
        (PASSED, SEEN, "as recorded: the rank passed, after 3 calls", True),
        (FAILED, BOOM, "as recorded: the rank failed: ValueError: boom, after 3 calls", True),
        (ENDED, seen(ended="the rank hung in its call 3"), "as recorded: the rank hung in its call 3", True),
        (PASSED, BOOM, "the rank failed: ValueError: boom, but in the recording it passed", False),
        (ENDED, SEEN, "the rank passed, but in the recording it was ended (was ended by disttest)", False),
        (
            PASSED,
            seen(diverged="at call 2 …"),
            "the rank did something else than recorded: at call 2 …",
            False,
        ),
        (
            PASSED,
            seen(other_values="call 2, x"),
            "other values than recorded, first in call 2, x; check for",
            False,
        ),
    ],
)
def test_a_replay_is_compared(expected, replayed, words, is_same):
    verdict = judge(expected, replayed)

    assert words in verdict.words
    assert (is_same, 0 if is_same else 1) == (verdict.is_same, verdict.exit_code)


def test_another_message_is_told_beside_the_recorded_one():
    verdict = judge(FAILED, msgspec.structs.replace(BOOM, message="ValueError: bang"))

    assert verdict.is_same
    assert "bang, after 3 calls; in the recording it failed: ValueError: boom" in verdict.words
