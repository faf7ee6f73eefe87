"""Hooks of GitHub."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.results.fold import RunResult


@hookimpl
def disttest_before_final_lines(run: RunResult, environ: Mapping[str, str]) -> None:
    """Print the annotations inside of a workflow."""
    if environ.get("GITHUB_ACTIONS") == "true":
        from disttest import github
        from disttest.plugins.github.annotations import render_annotations

        github.send(sys.stdout, render_annotations(run).rstrip("\n"))
