"""Options of the history."""

from __future__ import annotations

from pathlib import Path

from disttest.options.option import rows_of
from disttest.options.values import COUNT, path, text

NAME = "history"
USUAL = Path("disttest-history.sqlite")

FILE = rows_of("run", NAME)(
    "history",
    path("FILE"),
    "File that keeps the outcomes of runs. A run shows the past of its tests from it, and records its commit.",
    has_variable=True,
    for_command=True,
    inputs=("run",),
    otherwise=f"none; {USUAL} for disttest history",
)

_history = rows_of(NAME)

OPTIONS = (
    FILE,
    _history(
        "commit", text("COMMIT"), "Commit of added results that do not say it (JUnit).", default="", inputs=()
    ),
    _history(
        "branch",
        text("NAME"),
        "Branch of added results that do not say it; or the one to show.",
        default="",
        inputs=(),
    ),
    _history(
        "project",
        text("NAME"),
        "Project of the added results, such as github.com/org/project.",
        otherwise="the one that they were recorded with",
        default="",
        inputs=(),
    ),
    _history("last", COUNT, "How many runs to show.", default=30, inputs=()),
)
