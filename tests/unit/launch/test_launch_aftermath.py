"""The outputs of a launch, whatever ended it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_runs import SampleRun

from disttest.errors import ExitCode
from disttest.extras.container.aftermath import Aftermath
from disttest.model import Cause, Outcome
from disttest.results.journal import FILE_NAME, Journal


class Step:
    """A step of a workflow."""

    def __init__(self, folder: Path) -> None:
        self.results = folder / "results"
        self.results.mkdir()
        self.output, self.summary = folder / "output", folder / "summary"
        self.environ = {"GITHUB_OUTPUT": str(self.output), "GITHUB_STEP_SUMMARY": str(self.summary)}
        self.said: list[str] = []

    def begin(self) -> Aftermath:
        return Aftermath(self.results, self.environ, self.said.append)

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
    aftermath.settle(code)

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


def test_a_time_limit_is_one_truth(step: Step) -> None:
    aftermath = step.begin()
    step.run_inside(to_its_end=True)
    step.output.write_text("exit-code<<end\n143\nend\n")
    aftermath.settle(124)

    assert ("124", "timed-out") == (step.outputs()["exit-code"], step.outputs()["conclusion"])


@pytest.mark.parametrize("code", [127, 130])
def test_a_launch_without_a_run_has_outputs_and_none_of_an_earlier_run(step: Step, code: int) -> None:
    step.run_inside(to_its_end=True)
    step.begin().settle(code)

    assert {"conclusion", "exit-code", "infrastructure", "failed-tests"} == step.outputs().keys()
    assert str(code) == step.outputs()["exit-code"]


def test_outside_of_a_workflow_nothing_is_published(step: Step, tmp_path: Path) -> None:
    Aftermath(None, {}, step.said.append).settle(8)

    assert not step.output.exists()
