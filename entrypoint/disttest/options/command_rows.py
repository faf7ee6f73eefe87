"""The rows of the other commands."""

from __future__ import annotations

from pathlib import Path

from disttest.options.option import rows_of
from disttest.options.values import (
    AUTO,
    COUNT,
    SWITCH,
    WHOLE,
    one_of,
    path,
    text,
)

_plan, _merge, _run = rows_of("plan"), rows_of("merge"), rows_of("run")

PLAN_OPTIONS = (
    _plan(
        "pool",
        text("NAME:GPUS:RUNNERS[:COST]"),
        "A kind of runner; or NAME:SCHEDULER[:PARTITION[:NODESxGPUS[:COST]]], the nodes of slurm or kubernetes.",
        many=True,
    ),
    _plan("nodes", COUNT, "Spread each world over N nodes of a scheduler's pool.", default=1),
    _plan(
        "labels",
        text("NAME=LABEL,…"),
        "Labels of a pool's runners, for runs-on.",
        many=True,
        otherwise="its name",
    ),
    _plan("shards", COUNT, "Split over N equal runners instead."),
    _plan("by", one_of("world-size"), "One shard for each world size instead."),
    _plan("hardware", text("MODEL"), "GPU model that the runners have, or cpu.", default=""),
    _plan("revision", text("COMMIT"), "State of the repository, kept in the plan.", default=""),
    _plan("output", path("FILE"), "Where the plan goes.", default=Path("plan.json")),
    _plan(
        "matrix",
        path("FILE|-"),
        "Where the matrix of GitHub Actions goes (one line).",
        input_default="matrix.json",
    ),
    _plan("allow-empty", SWITCH, "No tests: a plan with the no-op entry, and exit code 0.", default=False),
)

MERGE_OPTIONS = (
    _merge("plan", path("FILE"), "The plan.", otherwise="the plan.json in a DIR"),
    _merge("shards", COUNT, "Without a plan: how many there must be.", default=0, otherwise="any number"),
    _merge("reruns", SWITCH, "Two results of one shard are a run and its re-run.", default=False),
    _merge("results", path("DIR"), "Where the merged results go.", default=Path("merged")),
)

KEEP_RESULTS = _run(
    "keep-results",
    WHOLE,
    "How many earlier runs, which are kept aside beside --results, stay; older ones are deleted.",
    otherwise="all",
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
