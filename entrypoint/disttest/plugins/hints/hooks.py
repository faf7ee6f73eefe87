"""The hints, and the messages of failed ranks that they apply to."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NamedTuple

from disttest.hookspecs import hookimpl
from disttest.model import Outcome, RankRecord, Section, TestResult

if TYPE_CHECKING:
    from disttest.runtime.world.judged_attempt import JudgedAttempt


_MISSING_FILE = r"(?:No such file or directory|does not exist)\W+(?P<path>/[^'\"]*)"
# Each thread of the kernel that fails prints such a line.
_ASSERTION = re.compile(r"([^/\s]+:\d+): .*block: \[[\d,]+\].* Assertion `(.+)` failed")
_LONGEST = 1000
"""Characters of the longest line that is searched: the pattern takes long for a line without its words."""
_READ = 1 << 20
_OF_A_RANK = r"/disttest/w\d+/rank\d+/"
"""Matches paths of ``tmp_path``: the folder of a world, then that of a rank."""


class Hint(NamedTuple):
    """A hint and its condition."""

    text: str
    fits: Callable[[RankRecord, TestResult], bool]
    """Receives a failed rank and the result of its test."""


def _matches(words: str) -> Callable[[RankRecord, TestResult], bool]:
    # Compiled when a test fails: every process of a run imports this module.
    return lambda rank, _result: re.search(words, rank.message, re.IGNORECASE) is not None


def _lacks_file_of_a_rank(rank: RankRecord, _result: TestResult) -> bool:
    found = re.search(_MISSING_FILE, rank.message)
    return found is not None and re.search(_OF_A_RANK, found["path"]) is not None


def _lacks_file_that_others_had(rank: RankRecord, result: TestResult) -> bool:
    found = re.search(_MISSING_FILE, rank.message)
    if found is None or not found["path"].startswith(f"{tempfile.gettempdir()}/"):
        return False
    return any(other.outcome is Outcome.PASSED for other in result.ranks)


HINTS = (
    Hint(
        "another test of this run may use the port at the same time: mark both tests exclusive, run with --slots 1, "
        "or ask for a free port with port 0",
        _matches(r"EADDRINUSE|address already in use"),
    ),
    Hint(
        "the fixture world has made the default process group before the test: remove the call, or make a second group "
        "with new_group",
        _matches(r"initialize the default process group twice"),
    ),
    Hint(
        "the fixture world makes the process group: take it as an argument, or mark a unittest class with "
        '@pytest.mark.usefixtures("world")',
        _matches(r"default process group has not been initialized"),
    ),
    Hint(
        "torch cannot use NumPy here, which collectives of objects and RPC need: see the line numpy of disttest doctor",
        _matches(r"Numpy is not available"),
    ),
    Hint(
        "tmp_path is a folder of this rank alone: use the fixture world_tmp_path, which all ranks of a test share",
        _lacks_file_of_a_rank,
    ),
    Hint(
        "a rank that is done may have removed it: use the fixture world_tmp_path, which stays until all ranks are done",
        _lacks_file_that_others_had,
    ),
)


def _assertion(log: str) -> re.Match[str] | None:
    lines = (line for line in log.splitlines() if " Assertion `" in line and len(line) <= _LONGEST)
    return next(filter(None, map(_ASSERTION.search, lines)), None)


def _no_log(_rank: int) -> str:
    return ""


def hint_for(result: TestResult, log_of: Callable[[int], str] = _no_log) -> str:
    """Return the first hint that applies to a failed rank, the culprit first; empty if none applies.

    Args:
        result: result of the test.
        log_of: returns the end of the log of a rank.
    """
    failed = [rank for rank in result.ranks if rank.outcome is not None and rank.outcome.is_bad]
    failed.sort(key=lambda rank: rank.rank != result.culprit)
    for rank in failed:
        if "device-side assert" in rank.message and (found := _assertion(log_of(rank.rank))):
            return (
                f"the kernel found that `{found[2]}` does not hold ({found[1]}): CUDA_LAUNCH_BLOCKING=1 shows the line "
                "that launched it"
            )
    return next((hint.text for rank in failed for hint in HINTS if hint.fits(rank, result)), "")


@hookimpl(wrapper=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> Generator[None, TestResult, TestResult]:
    """Add the hint that applies to the messages of the ranks."""
    result = yield
    if not result.outcome.is_bad or not attempt.has_ranks:
        return result
    from disttest.results.findings import with_section

    def log_of(rank: int) -> str:
        try:
            with attempt.log_of(rank).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _READ))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    hint = hint_for(result, log_of)
    return with_section(result, "hints", Section(title=f"hint: {hint}")) if hint else result
