"""The end of a run in a workflow: annotations, outputs and summary, and none of them without the plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sample_runs import SampleRun, mixed_run

from disttest.cli import finish, words
from disttest.errors import ExitCode
from disttest.plugin_manager import Plugins
from disttest.plugins.github.hooks import disttest_ci_job, disttest_command_failed
from disttest.plugins.github.outputs import STEP_PID

WORKFLOW = {"GITHUB_ACTIONS": "true"}


@pytest.fixture
def end(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    def finished(environ: dict[str, str]) -> str:
        run = mixed_run(tmp_path)
        finish.finish_run(run, tmp_path, settings={}, empty_shard=False, failures=False, environ=environ)
        return capfd.readouterr().out

    return finished


def test_a_workflow_gets_them_above_the_final_lines(end) -> None:
    shown = end(WORKFLOW)

    assert "::error title=" in shown
    assert shown.rindex("::error ") < shown.index("disttest: reports and logs in ")


@pytest.mark.parametrize("environ", [{}, {"GITHUB_ACTIONS": "false"}])
def test_elsewhere_there_are_none(end, environ) -> None:
    assert "::error" not in end(environ)


def test_without_the_plugin_there_are_none(end, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = Plugins(["disttest.github"])
    monkeypatch.setattr(finish, "plugin_manager", lambda: plugins)
    monkeypatch.setattr(words, "plugin_manager", lambda: plugins)

    assert "::error" not in end(WORKFLOW | files(tmp_path))
    assert not (tmp_path / "output").exists()
    assert not (tmp_path / "page").exists()


def files(folder: Path) -> dict[str, str]:
    return {"GITHUB_OUTPUT": str(folder / "output"), "GITHUB_STEP_SUMMARY": str(folder / "page")}


def test_outputs_and_summary_are_in_the_files_of_the_step(end, tmp_path: Path) -> None:
    end(files(tmp_path))

    assert "\nfailure\n" in (tmp_path / "output").read_text()
    assert "disttest: failed" in (tmp_path / "page").read_text()


@pytest.mark.parametrize(
    ("lost", "code"), [("GITHUB_OUTPUT", ExitCode.PASSED), ("GITHUB_STEP_SUMMARY", ExitCode.INTERNAL)]
)
def test_a_lost_summary_is_an_error_and_lost_outputs_are_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], lost: str, code: ExitCode
) -> None:
    sample = SampleRun()
    sample.test(name="test_good")
    environ = {lost: str(tmp_path / "missing" / "file")}

    ended = finish.finish_run(
        sample.finish(), tmp_path, settings={}, empty_shard=False, failures=False, environ=environ
    )

    assert code == ended
    assert "could not write GitHub's " in capfd.readouterr().err


def test_only_the_process_of_the_step_publishes_that_its_command_failed(tmp_path: Path) -> None:
    output, environ = tmp_path / "output", files(tmp_path)
    disttest_command_failed(ExitCode.USAGE, environ | {STEP_PID: "1"})
    assert not output.exists()

    disttest_command_failed(ExitCode.USAGE, environ | {STEP_PID: str(os.getpid())})
    assert "\nerror\n" in output.read_text()


def test_a_job_has_the_name_and_the_repository_of_its_variables() -> None:
    variables = {"GITHUB_REPOSITORY": "org/it", "GITHUB_JOB": "gpus", "GITHUB_WORKSPACE": "/work"}
    job = disttest_ci_job(WORKFLOW | variables)

    assert job is not None
    assert ("org/it gpus", "/work") == (job.name, job.workspace)
    assert disttest_ci_job(variables) is None


def test_a_workspace_that_is_a_link_has_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "work").symlink_to("disk")
    job = disttest_ci_job(WORKFLOW | {"GITHUB_WORKSPACE": str(tmp_path / "work")})

    assert job is not None
    assert str(tmp_path / "disk") == job.workspace
