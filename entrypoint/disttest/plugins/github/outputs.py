"""Outputs of a GitHub step, for later steps of a workflow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from disttest.errors import ExitCode
from disttest.plugins.github import commands
from disttest.reports.aggregates import tally
from disttest.reports.write import reporters
from disttest.results.fold import RunResult

OUTPUT_LIMIT = 200_000
"""Maximum size of the list of failed tests: all outputs of a job share a megabyte."""

OUTPUTS = {
    "conclusion": "success, failure, cancelled, timed-out, infrastructure, empty or error.",
    "exit-code": "Exit code of disttest.",
    "infrastructure": "true if a repetition on another machine can change the result (exit codes 6 to 9).",
    "results": "Results directory.",
    "junit": "JUnit XML.",
    "report": "The whole run, as JSON.",
    "summary": "Summary, as Markdown.",
    "page": "The report as one HTML page.",
    "tests": "Number of tests.",
    "passed": "Number of tests that passed, flaky ones included.",
    "failed": "Number of tests that failed.",
    "errors": "Number of tests that failed for a reason outside the test.",
    "skipped": "Number of tests that were skipped.",
    "flaky": "Number of tests that passed only in a later attempt.",
    "failed-tests": "Ids of the tests that failed, as a JSON list.",
    "gpu-minutes": "GPU time that tests held, in minutes.",
}
"""Output -> description; these are the outputs of the action."""

_CONCLUSIONS = {
    ExitCode.PASSED: "success",
    ExitCode.FAILED: "failure",
    ExitCode.INTERRUPTED: "failure",
    ExitCode.NOTHING_COLLECTED: "empty",
    ExitCode.NOT_ENOUGH_DEVICES: "infrastructure",
    ExitCode.INFRASTRUCTURE: "infrastructure",
    ExitCode.ENGINE: "infrastructure",
    ExitCode.SCHEDULER: "infrastructure",
    ExitCode.DEADLINE: "timed-out",
}


STEP_PID = "DISTTEST_STEP_PID"
"""Variable with the process of the step: commands that its tests start must not publish."""
_IN_DOCKER_ACTION = Path("/github/workspace")
"""The workspace inside a Docker action. Other steps start in it, too, but under another path."""


def conclude(exit_code: int) -> str:
    """Return the conclusion for an exit code."""
    if exit_code > 128:
        return "cancelled"
    return _CONCLUSIONS.get(ExitCode(exit_code), "error") if exit_code in set(ExitCode) else "error"


def run_outputs(run: RunResult, results_dir: Path, exit_code: int) -> dict[str, str]:
    """Return the outputs of a run whose reports have been written."""
    counts = tally(run)
    if results_dir.is_relative_to(_IN_DOCKER_ACTION):
        results_dir = results_dir.relative_to(_IN_DOCKER_ACTION)
    return {
        **_ending(exit_code),
        "results": str(results_dir),
        "junit": _path(results_dir, "junit"),
        "report": _path(results_dir, "json"),
        "summary": _path(results_dir, "summary"),
        "page": _path(results_dir, "html"),
        "tests": str(counts.total),
        "passed": str(counts.passed + counts.flaky),
        "failed": str(counts.failed),
        "errors": str(counts.infrastructure),
        "skipped": str(counts.left_out),
        "flaky": str(counts.flaky),
        "failed-tests": _ids([test.test.nodeid for test in run.bad]),
        "gpu-minutes": f"{counts.gpu_s / 60:.2f}",
    }


def failure_outputs(exit_code: int) -> dict[str, str]:
    """Return the outputs if no test ran: a container engine or a scheduler refused, or the request was invalid."""
    return {**_ending(exit_code), "failed-tests": "[]"}


def _ending(exit_code: int) -> dict[str, str]:
    """Return the outputs that the exit code determines."""
    conclusion = conclude(exit_code)
    return {
        "conclusion": conclusion,
        "exit-code": str(exit_code),
        "infrastructure": str(conclusion == "infrastructure").lower(),
    }


def _path(results_dir: Path, format_name: str) -> str:
    """Return the file of a report; empty if the run disabled its plugin."""
    reporter = reporters().get(format_name)
    return str(results_dir / reporter.file_name) if reporter else ""


def _ids(nodeids: list[str]) -> str:
    """Encode the list as JSON, cut at whole entries."""
    # The brackets of the list.
    kept, size = [], 2
    for nodeid in nodeids:
        # The comma that separates the entries.
        size += len(msgspec.json.encode(nodeid)) + 1
        if size > OUTPUT_LIMIT:
            break
        kept.append(nodeid)
    return msgspec.json.encode(kept).decode()


def publish_outputs(outputs: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Write the outputs of the step, if this is one."""
    if file := environ.get("GITHUB_OUTPUT"):
        for name, value in outputs.items():
            commands.write_output(Path(file), name, value)


def publish_failure(exit_code: int, environ: Mapping[str, str]) -> None:
    """Publish the outputs of a step whose command ends before it has results; do nothing in other processes."""
    if environ.get(STEP_PID) == str(os.getpid()):
        publish_outputs(failure_outputs(exit_code), environ)


def publish_summary(run: RunResult, results_dir: Path, environ: Mapping[str, str]) -> None:
    """Show the summary on the page of the workflow run, if this is one.

    It has no links, because the logs are not available there.
    """
    from disttest.plugins.summary.render import render_summary

    file, written = environ.get("GITHUB_STEP_SUMMARY"), _path(results_dir, "summary")
    if not file or not written or not Path(written).exists():
        return
    if not commands.append_summary(Path(file), render_summary(run, results_dir, links=False)):
        commands.append_summary(Path(file), f"The summary is too long for this page: see `{written}`.")
