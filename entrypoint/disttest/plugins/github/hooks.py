"""Hooks of GitHub."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.model import CiJob
    from disttest.results.fold import RunResult


@hookimpl
def disttest_ci_job(environ: Mapping[str, str]) -> CiJob | None:
    """Describe the job of the workflow."""
    if not _in_workflow(environ):
        return None
    from disttest.model import CiJob
    from disttest.plugins.github import commands

    name = filter(None, map(environ.get, ("GITHUB_REPOSITORY", "GITHUB_JOB", "GITHUB_RUN_ID")))
    workspace = environ.get("GITHUB_WORKSPACE", "")
    return CiJob(
        name=" ".join(name),
        # The run has the real path of its directory, and a merge on another machine cannot resolve a link.
        workspace=os.path.realpath(workspace) if workspace else "",
        shield=commands.harmless,
        fold=commands.group,
        end_fold=commands.end_group(),
    )


@hookimpl
def disttest_show_summary(run: RunResult, results: Path, environ: Mapping[str, str]) -> Sequence[str]:
    """Show the summary on the page of the workflow run."""
    from disttest.plugins.github.outputs import publish_summary

    return _lost(lambda: publish_summary(run, results, environ))


@hookimpl
def disttest_before_final_lines(run: RunResult, environ: Mapping[str, str]) -> None:
    """Print the annotations inside of a workflow."""
    if _in_workflow(environ):
        from disttest.output import write_trusted
        from disttest.plugins.github.annotations import render_annotations

        write_trusted(sys.stdout, render_annotations(run).rstrip("\n"))


@hookimpl
def disttest_run_finished(
    run: RunResult | None, results: Path | None, exit_code: int, environ: Mapping[str, str]
) -> Sequence[str]:
    """Write the outputs of the step."""
    from disttest.plugins.github.outputs import failure_outputs, publish_outputs, run_outputs

    if run is None or results is None:
        return _lost(lambda: publish_outputs(failure_outputs(exit_code), environ))
    return _lost(lambda: publish_outputs(run_outputs(run, results, exit_code), environ))


@hookimpl
def disttest_command_failed(exit_code: int, environ: Mapping[str, str]) -> Sequence[str]:
    """Write the outputs of a step whose command fails."""
    from disttest.plugins.github.outputs import publish_failure

    return _lost(lambda: publish_failure(exit_code, environ))


def _in_workflow(environ: Mapping[str, str]) -> bool:
    return environ.get("GITHUB_ACTIONS") == "true"


def _lost(publish: Callable[[], object]) -> list[str]:
    """Write to GitHub's files; return a message if that fails, because the results matter more."""
    try:
        publish()
    except OSError as error:
        return [f"could not write GitHub's {error.filename or 'files'}: {error.strerror}"]
    return []
