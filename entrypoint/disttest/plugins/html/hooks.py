"""Hooks of the HTML page."""

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
    """Return ``report.html``."""
    from disttest.reports.reporter import Reporter

    return {"html": Reporter("report.html", _write, load=_load)}


def _write(run: RunResult, results_dir: Path, history: Sequence[PastRun], file: BinaryIO) -> None:
    from disttest.plugins.html.render import render_html

    # Names of files may contain lone surrogates, which UTF-8 cannot encode.
    file.write(render_html(run, results_dir, history=history).encode("utf-8", errors="replace"))


def _load() -> None:
    from disttest.plugins.html.render import load_template

    load_template()
