"""Outputs of a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sample_runs

from disttest.errors import ExitCode
from disttest.plugins.github import outputs
from disttest.plugins.github.outputs import (
    OUTPUT_LIMIT,
    OUTPUTS,
    _ids,
    conclude,
    failure_outputs,
    publish_outputs,
    publish_summary,
    run_outputs,
)
from disttest.reports.write import write_reports


@pytest.mark.parametrize(
    ("code", "conclusion"),
    [
        (0, "success"), (1, "failure"), (2, "failure"), (3, "error"), (4, "error"), (5, "empty"),
        (6, "infrastructure"), (7, "infrastructure"), (8, "infrastructure"), (9, "infrastructure"), (124, "timed-out"),
        (130, "cancelled"), (143, "cancelled"), (99, "error"),
    ],
)  # fmt: skip
def test_conclusions(code: int, conclusion: str) -> None:
    assert conclude(code) == conclusion


def test_every_exit_code_has_a_conclusion() -> None:
    assert {conclude(code) for code in ExitCode} <= {
        "success", "failure", "cancelled", "timed-out", "infrastructure", "empty", "error",
    }  # fmt: skip


def test_outputs_of_a_run_count_every_test_once(tmp_path: Path) -> None:
    run = sample_runs.mixed_run()
    outputs = run_outputs(run, tmp_path, 1)
    assert set(outputs) == set(OUTPUTS)
    counted = sum(int(outputs[name]) for name in ("passed", "failed", "errors", "skipped"))
    expected_failures = sum(test.final.outcome == "xfailed" for test in run.tests)
    assert counted + expected_failures == int(outputs["tests"]) == len(run.tests)
    assert json.loads(outputs["failed-tests"]) == [test.test.nodeid for test in run.bad]
    assert outputs["junit"] == str(tmp_path / "junit.xml")


@pytest.mark.parametrize(
    ("code", "said"), [(6, "true"), (7, "true"), (1, "false"), (124, "false"), (130, "false")]
)
def test_only_codes_that_a_repetition_elsewhere_can_change_are_infrastructure(
    code: int, said: str, tmp_path: Path
) -> None:
    outputs = run_outputs(sample_runs.mixed_run(), tmp_path, code)

    assert int(outputs["errors"]) > 0
    assert outputs["infrastructure"] == said


def test_a_failure_without_tests_says_whose_fault_it_is() -> None:
    assert failure_outputs(8)["infrastructure"] == "true"
    assert failure_outputs(4)["infrastructure"] == "false"
    assert set(failure_outputs(4)) <= set(OUTPUTS)


def test_a_long_list_is_cut_at_whole_entries() -> None:
    kept = json.loads(_ids([f"tests/test_{n}.py::test" for n in range(50_000)]))
    assert 0 < len(kept) < 50_000
    assert len(json.dumps(kept)) < OUTPUT_LIMIT * 1.1


def test_values_with_newlines_are_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "output"
    publish_outputs({"failed-tests": "a\nb=c\n::error::x"}, {"GITHUB_OUTPUT": str(file)})
    lines = file.read_text().splitlines()
    assert lines[0].startswith("failed-tests<<")
    assert lines[1:-1] == ["a", "b=c", "::error::x"]
    assert lines[-1] == lines[0].removeprefix("failed-tests<<")


def test_without_a_step_nothing_is_written(tmp_path: Path) -> None:
    publish_outputs({"tests": "1"}, {})
    publish_summary(sample_runs.mixed_run(), tmp_path, {})
    assert list(tmp_path.iterdir()) == []


def test_the_summary_is_shown_without_links_to_logs_that_are_not_there(tmp_path: Path) -> None:
    run = sample_runs.mixed_run(tmp_path)
    write_reports(run, tmp_path, ("summary",))
    publish_summary(run, tmp_path, {"GITHUB_STEP_SUMMARY": str(tmp_path / "page")})
    assert "](logs/" in (tmp_path / "summary.md").read_text()
    shown = (tmp_path / "page").read_text()
    assert "## ❌ disttest: failed" in shown
    assert "](logs/" not in shown


def test_a_summary_that_could_not_be_written_is_not_shown(tmp_path: Path) -> None:
    publish_summary(sample_runs.mixed_run(), tmp_path, {"GITHUB_STEP_SUMMARY": str(tmp_path / "page")})
    assert list(tmp_path.iterdir()) == []


def test_without_the_plugin_of_the_summary_none_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {name: each for name, each in outputs.reporters().items() if name != "summary"}
    monkeypatch.setattr(outputs, "reporters", lambda: others)

    publish_summary(sample_runs.mixed_run(), tmp_path, {"GITHUB_STEP_SUMMARY": str(tmp_path / "page")})

    assert not (tmp_path / "page").exists()


def test_paths_of_a_docker_action_are_relative_to_the_workspace():
    run = sample_runs.SampleRun().finish()
    outputs = run_outputs(run, Path("/github/workspace/out"), 0)
    assert ("out", "out/junit.xml") == (outputs["results"], outputs["junit"])
