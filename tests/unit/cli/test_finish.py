"""The last words of a run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from planning_cases import case
from sample_runs import mixed_run

from disttest.cli.finish import finish_run, is_worth_keeping
from disttest.errors import ExitCode
from disttest.model import Outcome, TestResult
from disttest.results.fold import TestOutcome


def test_why_a_run_ended_early_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    why = "the deadline of the run (60 s) passed"
    run = msgspec.structs.replace(mixed_run(tmp_path), exit_code=8, reason=why)

    finish_run(run, tmp_path, settings={}, empty_shard=False, failures=False, environ={})

    told = capfd.readouterr()
    last_words = [line.removeprefix("disttest: ") for line in (told.out + told.err).splitlines()]
    assert [why] == [line for line in last_words if line == why]


@pytest.mark.parametrize(
    ("exit_code", "kept", "environ"),
    [
        (ExitCode.PASSED, True, {}),
        (ExitCode.USAGE, False, {}),
        (ExitCode.NOTHING_COLLECTED, False, {}),
        (ExitCode.INFRASTRUCTURE, True, {}),
        (ExitCode.USAGE, True, {"GITHUB_ACTIONS": "true"}),
    ],
)
def test_a_run_that_found_nothing_keeps_the_results_of_the_run_before(
    tmp_path: Path, exit_code: ExitCode, kept: bool, environ: dict[str, str]
) -> None:
    mixed = mixed_run(tmp_path)
    empty = msgspec.structs.replace(mixed, exit_code=exit_code, tests=(), collection_errors=())

    skip = TestResult(nodeid="gone.py", outcome=Outcome.SKIPPED, phase="collect")
    skips = TestOutcome(test=case("gone", None), attempts=(skip,))

    assert kept == is_worth_keeping(empty, environ)
    assert kept == is_worth_keeping(msgspec.structs.replace(empty, tests=(skips,)), environ), "a typo in -k"
    assert is_worth_keeping(msgspec.structs.replace(mixed, exit_code=exit_code), environ)
