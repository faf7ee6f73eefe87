"""Which failures get a hint, and which one."""

from __future__ import annotations

import tempfile

import pytest

from disttest.model import Outcome, RankEnd, RankRecord, TestResult
from disttest.plugins.hints.hooks import hint_for

TMP = tempfile.gettempdir()


def rank(number: int, message: str = "") -> RankRecord:
    outcome = Outcome.FAILED if message else Outcome.PASSED
    return RankRecord(rank=number, end=RankEnd.REPORTED, outcome=outcome, phase="call", message=message)


def hinted(*ranks: RankRecord, culprit: int | None = None) -> str:
    return hint_for(TestResult(nodeid="t.py::test_x", outcome=Outcome.FAILED, ranks=ranks, culprit=culprit))


LOG = """\
step 3
/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0] \
Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.
/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], thread: [1,0,0] \
Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.
"""


def test_an_assertion_on_the_gpu_is_quoted_from_the_log():
    message = "AcceleratorError: CUDA error: device-side assert triggered"
    result = TestResult(
        nodeid="t.py::test_x", outcome=Outcome.FAILED, ranks=(rank(0), rank(1, message)), culprit=1
    )

    hint = hint_for(result, lambda number: LOG if number == 1 else "")

    assert hint.startswith(
        'the kernel found that `-sizes[i] <= index && index < sizes[i] && "index out of bounds"`'
    )
    assert "(IndexKernel.cu:111)" in hint
    assert "CUDA_LAUNCH_BLOCKING=1" in hint
    assert "" == hint_for(result, lambda _: "nothing of it")
    # Quadratic in the length of a line, the search took a minute for a megabyte.
    assert "" == hint_for(result, lambda _: "a/b" * 300_000 + " Assertion `")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("DistNetworkError: The server socket has failed to listen: EADDRINUSE", "--slots 1"),
        ("OSError: [Errno 98] Address already in use", "--slots 1"),
        ("ValueError: trying to initialize the default process group twice!", "new_group"),
        ("ValueError: Default process group has not been initialized, please", "usefixtures"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/x/pytest-1/disttest/w2/rank1/test_a0/m.pt'",
            "tmp_path is a folder of this rank alone",
        ),
    ],
)
def test_a_message_has_its_hint(message, words):
    assert words in hinted(rank(0), rank(1, message))


def test_a_temporary_file_that_is_gone_for_one_rank_only_may_have_been_removed():
    gone = f"FileNotFoundError: [Errno 2] No such file or directory: '{TMP}/tmpab/model.pt'"

    assert "may have removed it" in hinted(rank(0), rank(1, gone))
    assert hinted(rank(0, gone), rank(1, gone)) == ""
    assert hinted(rank(0), rank(1, gone.replace(TMP, "/data"))) == ""


def test_most_failures_have_none():
    assert hinted(rank(0), rank(1, "AssertionError: the port 80 is closed")) == ""


def test_the_culprit_comes_first():
    port, twice = "OSError: Address already in use", "ValueError: initialize the default process group twice!"

    assert "new_group" in hinted(rank(0, port), rank(1, twice), culprit=1)
