"""Hooks of the report in the Common Test Report Format."""

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
    """Return ``ctrf.json``."""
    from disttest.reports.reporter import Reporter

    return {"ctrf": Reporter("ctrf.json", _write)}


def _write(run: RunResult, results_dir: Path, history: Sequence[PastRun], file: BinaryIO) -> None:  # noqa: ARG001
    from disttest.plugins.ctrf.report import ctrf_pieces

    file.writelines(ctrf_pieces(run))
