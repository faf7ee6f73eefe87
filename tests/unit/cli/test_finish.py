"""The last words of a run."""

from __future__ import annotations

import types
from pathlib import Path

import msgspec
import pytest
from planning_cases import case
from sample_runs import SampleRun, mixed_run

from disttest.cli import finish
from disttest.cli.finish import finish_run, is_worth_keeping
from disttest.errors import ExitCode
from disttest.hookspecs import hookimpl
from disttest.model import Outcome, TestResult
from disttest.plugin_manager import Plugins
from disttest.results.conclusion import Demands
from disttest.results.fold import TestOutcome
from disttest.results.journal import FILE_NAME


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


@pytest.fixture
def with_hook(monkeypatch: pytest.MonkeyPatch):
    """Add a plugin with this function as its demands on a run."""

    def add(check) -> None:
        plugins, mine = Plugins(), types.ModuleType("mine")
        mine.disttest_check_run = hookimpl(check)
        plugins.add(mine, "mine")
        monkeypatch.setattr(finish, "plugin_manager", lambda: plugins)

    return add


@pytest.mark.parametrize(
    ("demands", "code"),
    [
        (Demands(broken=["only 1 test"]), ExitCode.FAILED),
        (Demands(idle=["only 1 test"]), ExitCode.NOT_ENOUGH_DEVICES),
        (None, ExitCode.PASSED),
    ],
)
def test_a_demand_of_a_plugin_that_is_not_met_turns_a_green_run_red(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], with_hook, demands: Demands | None, code: ExitCode
) -> None:
    sample = SampleRun()
    sample.test()
    run = sample.finish()
    (tmp_path / FILE_NAME).touch()
    seen = []
    with_hook(lambda run, settings: seen.append((len(run.tests), settings)) or demands)

    ended = finish_run(run, tmp_path, settings={"budget": 3}, empty_shard=False, failures=False, environ={})

    assert code == ended
    assert [(1, {"budget": 3})] == seen
    shown = capfd.readouterr()
    assert bool(code) == ("only 1 test" in shown.out + shown.err)
    assert bool(code) == ("only 1 test" in (tmp_path / FILE_NAME).read_text())


def test_a_run_that_a_plugin_cannot_check_is_an_error_with_all_reports(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], with_hook
) -> None:
    sample = SampleRun()
    sample.test()
    (tmp_path / FILE_NAME).touch()
    with_hook(lambda run: run.budget)

    ended = finish_run(sample.finish(), tmp_path, settings={}, empty_shard=False, failures=False, environ={})

    assert ExitCode.INTERNAL == ended
    assert "plugin mine failed in disttest_check_run: AttributeError" in "".join(capfd.readouterr())
    assert (tmp_path / "junit.xml").exists()


def test_a_shard_of_an_empty_plan_says_in_its_reports_that_it_passed(tmp_path: Path) -> None:
    run = msgspec.structs.replace(SampleRun().finish(), exit_code=ExitCode.NOTHING_COLLECTED)
    (tmp_path / FILE_NAME).touch()

    ended = finish_run(run, tmp_path, settings={}, empty_shard=True, failures=False, environ={})

    assert ExitCode.PASSED == ended
    assert '"exit_code":0' in (tmp_path / FILE_NAME).read_text()
    assert "disttest: passed" in (tmp_path / "summary.md").read_text()
