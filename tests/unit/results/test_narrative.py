"""What ranks did, in one line each and in one word each."""

import faulthandler

import pytest

from disttest.model import Cause, Outcome, RankEnd, RankRecord, TestResult
from disttest.results.narrative import crash_stacks, describe_rank, how_ended, how_failed, without_stacks

DUMP = """\
printed before
Fatal Python error: Segmentation fault

Thread 0x00007f32aa8296c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 3 in wait

Current thread 0x00007f32cc40fb80 (most recent call first):
  File "/repo/test_bad.py", line 15 in boom
  File "/repo/test_bad.py", line 21 in test_crash
  File "/venv/_pytest/python.py", line 187 in pytest_pyfunc_call
  File "<frozen runpy>", line 198 in _run_module_as_main

Extension modules: numpy._core, torch._C (total: 2)
printed by a child"""


def test_the_stacks_of_a_crash_are_read_from_the_log():
    assert crash_stacks(DUMP).splitlines() == [
        "Thread (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 3 in wait',
        "",
        "Current thread (most recent call first):",
        '  File "/repo/test_bad.py", line 15 in boom',
        '  File "/repo/test_bad.py", line 21 in test_crash',
    ]
    assert ["printed before", "", "printed by a child"] == without_stacks(DUMP).splitlines()


def test_a_log_without_a_crash_has_none():
    assert "" == crash_stacks("Fatal: no\nprinted")
    assert "printed" == without_stacks("printed\n")


def test_frames_of_cpp_are_left_out_of_a_log():
    """Behind them an excerpt had no room for the assertion of the kernel."""
    log = """\
IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0] Assertion `index < sizes[i]` failed.
Exception raised from query at /pytorch/c10/cuda/CUDAEvent.h:111 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7fcf77b7305d in /venv/torch/lib/libc10.so)
frame #1: <unknown function> + 0xc114 (0x7fcf79973114 in /venv/torch/lib/libc10_cuda.so)

frame #2 of the video was dropped"""

    assert without_stacks(log).splitlines() == [
        "IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0] Assertion `index < sizes[i]` failed.",
        "Exception raised from query at /pytorch/c10/cuda/CUDAEvent.h:111 (most recent call first):",
        "",
        "frame #2 of the video was dropped",
    ]


def test_what_this_python_writes_is_understood(tmp_path):
    """The heading of the frames of a thread, as faulthandler has it today."""
    with (tmp_path / "log").open("w+") as file:
        file.write("Fatal Python error: Aborted\n\n")
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        log = file.read() + "after"

    assert f"in {test_what_this_python_writes_is_understood.__name__}" in crash_stacks(log)
    assert "after" == without_stacks(log)


RANKS = {
    "passed": RankRecord(rank=0, end=RankEnd.REPORTED, outcome=Outcome.PASSED),
    "failed": RankRecord(rank=0, end=RankEnd.REPORTED, outcome=Outcome.FAILED),
    "error": RankRecord(rank=0, end=RankEnd.SIGNALLED, outcome=Outcome.ERROR),
    "crashed": RankRecord(rank=0, end=RankEnd.SIGNALLED),
    "timed out": RankRecord(rank=0, end=RankEnd.KILLED, hung=True),
    "ended by disttest": RankRecord(rank=0, end=RankEnd.KILLED),
    "not run": RankRecord(rank=0, end=RankEnd.REPORTED),
}


@pytest.mark.parametrize(("word", "record"), RANKS.items(), ids=RANKS)
def test_a_rank_has_one_word(word, record):
    assert word == how_ended(record)


def result(outcome=Outcome.FAILED, *ranks, **more):
    return TestResult(nodeid="t", outcome=outcome, ranks=ranks, culprit=0 if ranks else None, **more)


@pytest.mark.parametrize(
    ("word", "failure"),
    [
        ("failed", result(Outcome.FAILED, RANKS["failed"])),
        ("error", result(Outcome.ERROR, RANKS["error"])),
        ("crashed", result(Outcome.ERROR, RANKS["crashed"])),
        ("timed out", result(Outcome.FAILED, RANKS["timed out"])),
        ("infrastructure", result(Outcome.ERROR, cause=Cause.INFRASTRUCTURE)),
    ],
)
def test_a_failure_has_one_word(word, failure):
    assert word == how_failed(failure)


def test_a_culprit_that_left_its_peers_waiting_has_not_passed():
    told = describe_rank(RANKS["passed"], result(Outcome.FAILED, RANKS["passed"]))

    assert "ran to its end, while others waited for it [culprit]" == told
    assert "passed" == describe_rank(RANKS["passed"], TestResult(nodeid="t", outcome=Outcome.FAILED))
