"""The options of the core: those of every run, and those of the commands."""

from __future__ import annotations

import sys

from disttest.model import FlakyRule, VerdictRule
from disttest.options.option import of_every_run, rows_of
from disttest.options.values import (
    AUTO,
    BYTES,
    COUNT,
    ISOLATION,
    NAMES,
    SECONDS,
    SECONDS_OR_NONE,
    SWITCH,
    WHOLE,
    WORLD_SIZES,
    GpuShare,
    Type,
    devices,
    member_of,
    one_of,
    parse_share,
    path,
    text,
)
from disttest.planning.backends import BACKENDS, DEVICES

UNTIL_FAIL = "until-fail"
"""The value of ``--repeat`` that stops at the first failure."""
MOST_REPEATS = 100
"""Number of repetitions after which it stops."""

RUN_OPTIONS = (
    of_every_run(
        "world-sizes",
        WORLD_SIZES,
        "World sizes to run, instead of those that fit the machine.",
        default=(),
        plan=True,
        shapes_tests=True,
    ),
    of_every_run(
        "backend",
        NAMES,
        f"Backends to run: {', '.join(row.name for row in BACKENDS[:2])}, …; others by the name that they are registered with.",
        default=(),
        otherwise="the best for the device",
        plan=True,
        shapes_tests=True,
    ),
    of_every_run(
        "device",
        devices(AUTO, *DEVICES),
        "Where ranks compute.",
        default=AUTO,
        otherwise="GPUs if any",
        plan=True,
        shapes_tests=True,
    ),
    of_every_run(
        "slots",
        COUNT,
        "How many slots to use: GPUs, or shares of the CPU.",
        default=0,
        otherwise="all",
        shapes_tests=True,
    ),
    of_every_run(
        "gpus",
        Type(form="CHOICE", parse=parse_share),
        "GPUs to take: auto, all, none, a count, UUIDs, or device=INDEX.",
        default=GpuShare(),
        otherwise=AUTO,
        shapes_tests=True,
    ),
    of_every_run(
        "ranks-per-gpu",
        COUNT,
        "How many ranks of a world may share a GPU, if the world needs more ranks than there are GPUs (needs NCCL 2.30).",
        default=1,
        plan=True,
        repeated=True,
        shapes_tests=True,
    ),
    of_every_run(
        "timeout",
        SECONDS_OR_NONE,
        "Time limit of a test without a timeout mark; 0: none.",
        default=300.0,
        plan=True,
        repeated=True,
        shapes_tests=True,
    ),
    of_every_run("deadline", SECONDS_OR_NONE, "Time limit of the whole run.", default=0.0, otherwise="none"),
    of_every_run(
        "grace",
        SECONDS,
        "Time for other ranks to fail by themselves, once one has.",
        # The peers of a failed rank usually notice within this time. After a lost connection they get
        # `limits.CONSEQUENCE_WAIT_S`.
        default=0.3,
        no_flag=True,
    ),
    of_every_run("results", path("DIR"), "Directory for reports, journal and logs."),
    of_every_run(
        "isolation", ISOLATION, "New processes for each test, or reuse.", otherwise=AUTO, repeated=True
    ),
    of_every_run(
        "one-world",
        SWITCH,
        "Run warm tests of one world size in one world, in order, whatever their files, until one fails.",
        default=False,
        inputs_of_action=False,
    ),
    of_every_run("seed", WHOLE, "Mixed into the seed that each test starts with.", default=0, repeated=True),
    of_every_run(
        "log-limit",
        BYTES,
        "How much of each rank's log is kept, such as 64k or 8m.",
        default=8 * 1024 * 1024,
        no_flag=True,
    ),
    of_every_run(
        "native-stacks",
        SWITCH,
        "Log C frames of hanging ranks too, by py-spy, which needs ptrace.",
        default=False,
        otherwise="false",
    ),
    of_every_run(
        "verdict",
        member_of(VerdictRule),
        "Rules for torch's own test classes.",
        default=VerdictRule.STRICT,
        repeated=True,
    ),
    of_every_run("retries", WHOLE, "How often a failed test is tried again in a new world.", default=0),
    of_every_run(
        "infra-retries",
        WHOLE,
        "How often an attempt that a broken machine has spoiled is tried again.",
        default=0,
    ),
    of_every_run(
        "flaky",
        member_of(FlakyRule),
        "Whether flaky tests fail the run: those that passed only when tried again.",
        default=FlakyRule.PASS,
    ),
    of_every_run(
        "repeat",
        Type(
            form=f"N|{UNTIL_FAIL}",
            parse=lambda text: MOST_REPEATS if text == UNTIL_FAIL else COUNT.parse(text),
        ),
        f"Run every test N times, with another seed each time; {UNTIL_FAIL}: until one fails, {MOST_REPEATS} times at most.",
        default=1,
        repeated=True,
        formerly=(("until-fail", f"--repeat {UNTIL_FAIL}"),),
    ),
    of_every_run(
        "foreign-marks",
        Type(form="DIR[,DIR…]", parse=NAMES.parse),
        "Folders, seen from pytest's root directory, whose world_size marks belong to another harness.",
        default=(),
        no_flag=True,
    ),
)
"""The options of every run."""


_run = rows_of("run")

SELECTION_OPTIONS = (
    rows_of("run", "plan")(
        "timings",
        path("FILE"),
        "Journal, results.json or JUnit file of earlier runs.",
        many=True,
    ),
    _run(
        "failed-first",
        SWITCH,
        "Start with the tests that failed in the run before, or in the newest of --timings.",
        default=False,
        aliases=("--ff",),
    ),
    rows_of("run", "plan")(
        "setup",
        path("FILE"),
        "Run this script with bash first, where the tests run: as their user, in their folder.",
    ),
)
"""Options that refer to earlier runs, and the setup script."""


KEEP_RESULTS = _run(
    "keep-results",
    Type(form="N|all", parse=lambda text: sys.maxsize if text == "all" else WHOLE.parse(text)),
    "Keep the results of so many earlier runs, as folders next to --results; older ones are deleted.",
    # Without a limit, a day of runs left forty folders next to the tests.
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
