"""The outputs of a launch, whatever ended it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from sample_runs import SampleRun

from disttest.errors import EngineError, ExitCode
from disttest.extras.container import launching
from disttest.extras.container.launch_host import Host
from disttest.extras.container.launching import Aftermath, launch, rebuild_left_run
from disttest.extras.container.left_containers import WORKING_DIR, RunnerJob, make_labels
from disttest.extras.container.options import LaunchOptions
from disttest.host.proc import this_process
from disttest.model import Cause, Outcome
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, Journal, read_events


class Step:
    """A step of a workflow."""

    def __init__(self, folder: Path) -> None:
        self.results = folder / "results"
        self.results.mkdir()
        self.output, self.summary = folder / "output", folder / "summary"
        self.environ = {"GITHUB_OUTPUT": str(self.output), "GITHUB_STEP_SUMMARY": str(self.summary)}
        self.said: list[str] = []

    def begin(self) -> Aftermath:
        return Aftermath(self.results, self.results.parent, self.environ, self.said.append)

    def run_inside(self, *, to_its_end: bool = False) -> None:
        """What a run has written when it was killed, or at its end."""
        run = SampleRun()
        run.test(name="test_a")
        run.test(Outcome.FAILED, name="test_b", cause=Cause.TEST, message="rank 1 failed")
        if to_its_end:
            run.finish()
        journal = Journal(self.results / FILE_NAME)
        for event in run.events:
            journal.append(event)
        journal.close()

    def outputs(self) -> dict[str, str]:
        """The last value of each output counts, as GitHub reads them."""
        lines = iter(self.output.read_text().splitlines())
        return {line.partition("<<")[0]: next(lines) for line in lines if "<<" in line}


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


@pytest.mark.parametrize("code", [137, ExitCode.ENGINE])
def test_a_run_that_was_broken_off_has_reports_outputs_and_a_summary(step: Step, code: int) -> None:
    aftermath = step.begin()
    step.run_inside()
    aftermath.settle(code, "the engine went away")

    run = fold(read_events(step.results / FILE_NAME))
    assert (run.exit_code, run.reason, run.notes) == (code, "the engine went away", ())

    outputs = step.outputs()
    assert (str(int(code)), str(step.results / "junit.xml")) == (outputs["exit-code"], outputs["junit"])
    assert int(outputs["tests"]) > 0
    assert (step.results / "junit.xml").exists()
    assert step.summary.read_text()


def test_the_outputs_of_a_run_that_ended_by_itself_stay(step: Step) -> None:
    aftermath = step.begin()
    step.run_inside(to_its_end=True)
    step.output.write_text("conclusion<<end\nfailure\nend\n")
    aftermath.settle(1)

    assert step.outputs() == {"conclusion": "failure"}


@pytest.mark.parametrize(("to_its_end", "told"), [(True, []), (False, [137])])
def test_plugins_are_told_once_how_a_run_ended(
    step: Step, monkeypatch: pytest.MonkeyPatch, to_its_end: bool, told: list[int]
) -> None:
    codes: list[int] = []

    def items(hook: str, _type: type[str], **arguments: Any) -> list[tuple[str, str]]:
        codes.extend([arguments["exit_code"]] if hook == "disttest_run_finished" else [])
        return []

    aftermath = Aftermath(step.results, step.results.parent, {}, step.said.append)
    step.run_inside(to_its_end=to_its_end)
    monkeypatch.setattr(launching, "plugin_manager", lambda: SimpleNamespace(items=items))
    aftermath.settle(1 if to_its_end else 137, "" if to_its_end else "the engine went away")

    assert codes == told


def test_a_time_limit_is_one_truth(step: Step) -> None:
    aftermath = step.begin()
    step.run_inside(to_its_end=True)
    step.output.write_text("exit-code<<end\n143\nend\n")
    step.summary.write_text("cancelled by SIGTERM")
    aftermath.settle(124, "the time limit passed")

    assert ("124", "timed-out") == (step.outputs()["exit-code"], step.outputs()["conclusion"])
    assert "the time limit passed" in step.summary.read_text()
    assert "cancelled" not in step.summary.read_text()
    assert fold(read_events(step.results / FILE_NAME)).exit_code == 124
    assert "the time limit passed" in (step.results / "summary.md").read_text()


def test_a_run_without_a_directory_of_its_own_is_found(step: Step, tmp_path: Path) -> None:
    aftermath = Aftermath(None, tmp_path, step.environ, step.said.append)
    step.run_inside()
    aftermath.settle(137, "killed")

    assert step.outputs()["junit"] == str(step.results / "junit.xml")


def test_a_run_whose_directory_the_project_names_is_found(step: Step, tmp_path: Path) -> None:
    step.results = step.results.rename(tmp_path / "ci")
    (tmp_path / "pyproject.toml").write_text('[tool.disttest]\nresults = "ci"\n')
    aftermath = Aftermath(None, tmp_path, step.environ, step.said.append)
    step.run_inside()
    aftermath.settle(137, "killed")

    assert step.outputs()["junit"] == str(tmp_path / "ci/junit.xml")


def test_a_line_that_was_cut_takes_no_other_along(step: Step) -> None:
    aftermath = step.begin()
    step.run_inside()
    with (step.results / FILE_NAME).open("ab") as journal:
        journal.write(b'{"type": "test_fin')
    aftermath.settle(137, "killed")

    assert fold(read_events(step.results / FILE_NAME)).exit_code == 137


def test_the_run_of_a_launcher_that_is_gone_gets_its_reports_once(step: Step) -> None:
    step.run_inside()
    for _ in range(2):
        rebuild_left_run(step.results, step.results.parent, step.said.append)

    run = fold(read_events(step.results / FILE_NAME))
    assert (run.exit_code, len(run.tests), len(step.said)) == (137, 2, 1)
    assert (step.results / "junit.xml").exists()


def test_a_directory_that_a_run_holds_is_left_alone(step: Step) -> None:
    step.run_inside()
    holder = os.open(step.results, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    before = (step.results / FILE_NAME).read_bytes()
    rebuild_left_run(step.results, step.results.parent, step.said.append)
    os.close(holder)

    assert before == (step.results / FILE_NAME).read_bytes()


@pytest.mark.parametrize("named", [True, False])
def test_the_run_of_another_launch_that_goes_on_is_left_alone(step: Step, named: bool) -> None:
    own, other = step.results, step.results.with_name("results-2")
    aftermath = Aftermath(other if named else None, own.parent, step.environ, step.said.append)
    step.run_inside()
    step.results = other
    other.mkdir()
    step.run_inside()
    after = (own / FILE_NAME).stat().st_mtime + 1
    os.utime(other / FILE_NAME, (after, after))
    holder = os.open(other, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    before = (other / FILE_NAME).read_bytes()
    aftermath.settle(137, "killed")
    rebuild_left_run(other if named else None, own.parent, step.said.append)
    os.close(holder)

    assert [FILE_NAME] == [path.name for path in other.iterdir()]
    assert before == (other / FILE_NAME).read_bytes()
    assert named != (own / "junit.xml").exists()
    assert (None if named else str(own / "junit.xml")) == step.outputs().get("junit")


def test_the_run_of_a_dead_launch_is_not_the_one_of_the_next_launch(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    step.run_inside()
    dead = structs.replace(this_process(), started=1)
    labels = make_labels(dead, RunnerJob(), expires_at_s=1e12) | {WORKING_DIR: str(step.results.parent)}
    api = SimpleNamespace(
        containers=lambda **_: [{"Id": "c1", "Labels": labels}], remove_container=lambda *_, **__: None
    )
    engine = SimpleNamespace(api=api, close=lambda: None)
    monkeypatch.setattr(launching, "_engine", lambda *_: engine)
    monkeypatch.setattr(launching, "_prepare", refuse)
    host = Host(
        environ=step.environ, uid=0, home="/", version="1", find_gpus=lambda: (), now=lambda: 1_800_000_000.0
    )

    with pytest.raises(EngineError):
        launch(LaunchOptions(arguments=(), working_dir=step.results.parent), host, say=step.said.append)

    reason = "the launcher was killed; the next launch removed its container"
    assert reason == fold(read_events(step.results / FILE_NAME)).reason
    assert {"conclusion", "exit-code", "infrastructure", "failed-tests"} == step.outputs().keys()


def refuse(*_: object) -> None:
    raise EngineError("the engine refuses")


@pytest.mark.parametrize("code", [127, 130])
def test_a_launch_without_a_run_has_outputs_and_none_of_an_earlier_run(step: Step, code: int) -> None:
    step.run_inside(to_its_end=True)
    step.begin().settle(code)

    assert {"conclusion", "exit-code", "infrastructure", "failed-tests"} == step.outputs().keys()
    assert str(code) == step.outputs()["exit-code"]


def test_outside_of_a_workflow_nothing_is_published(step: Step, tmp_path: Path) -> None:
    Aftermath(None, tmp_path, {}, step.said.append).settle(8)

    assert not step.output.exists()
