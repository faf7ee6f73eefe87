"""The options of the other commands."""

from __future__ import annotations

import sys

from disttest.options.option import rows_of
from disttest.options.values import (
    AUTO,
    SWITCH,
    WHOLE,
    Type,
    one_of,
    path,
    text,
)

_run = rows_of("run")

KEEP_RESULTS = _run(
    "keep-results",
    Type(form="N|all", parse=lambda text: sys.maxsize if text == "all" else WHOLE.parse(text)),
    "Keep the results of so many earlier runs, as folders next to --results; older ones are deleted.",
    default=1,
    has_variable=True,
    inputs=(),
    for_command=True,
)


OTHER_OPTIONS = (
    KEEP_RESULTS,
    _run(
        "progress",
        one_of(AUTO, "live", "lines", "pytest"),
        "What a run shows while it lasts; pytest: its own output.",
        default=AUTO,
        inputs=(),
        of_every_run=True,
    ),
    rows_of("list")("tests", SWITCH, "List every test, not only the suites.", default=False),
    rows_of("report")("format", text("NAME"), "What to write.", many=True, otherwise="all"),
    rows_of("report")(
        "history",
        path("DIR"),
        "Results directory of an earlier run, for the trend and the past of each test in report.html.",
        many=True,
    ),
)
