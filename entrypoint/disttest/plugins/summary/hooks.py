"""Hooks of the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.reports.past_runs import PastRun
    from disttest.reports.reporter import Reporter
    from disttest.results.fold import RunResult


@hookimpl
def disttest_addreporters() -> Mapping[str, Reporter]:
    """Return ``summary.md``."""
    from disttest.reports.reporter import Reporter

    return {"summary": Reporter("summary.md", _write, load=_load)}


def _write(run: RunResult, results_dir: Path, history: Sequence[PastRun], file: BinaryIO) -> None:  # noqa: ARG001
    from disttest.plugins.summary.render import render_summary

    file.write(render_summary(run, results_dir).encode("utf-8", errors="replace"))


def _load() -> None:
    from disttest.plugins.summary import render  # noqa: F401
