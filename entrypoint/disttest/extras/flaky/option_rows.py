"""The options of flaky tests."""

from __future__ import annotations

from disttest.extras.flaky.perturb import PERTURBED
from disttest.extras.history.option_rows import FILE as HISTORY
from disttest.options.option import Option, of_every_run, rows_of
from disttest.options.values import SECONDS, SWITCH, path, text

NAME = "flaky"
USUAL = "flaky.toml"

FILE = of_every_run(
    "quarantine",
    path("FILE"),
    "Tests whose failures do not fail the run until a date.",
    otherwise=f"{USUAL} in pytest's root directory, if it is there",
)

PERTURB = of_every_run(
    "perturb",
    PERTURBED,
    "Disturb tests in ranks, and isolated ones: delay:0.2 delays collectives by up to 0.2 s, cpu:4 leaves one processor, "
    "with 4 busy processes, threads:1 limits compute threads, memory:2g the memory of each process.",
    repeated=True,
)

OPTIONS: tuple[Option, ...] = (
    FILE,
    PERTURB,
    rows_of(NAME)(
        "budget", SECONDS, "Time for the measurement, shared evenly by the tests.", default=120.0, inputs=()
    ),
    rows_of(NAME)("until-fail", SWITCH, "Stop at the first failure.", default=False, inputs=()),
    rows_of(NAME)("json", text("FILE"), "Write the findings as JSON; - is standard output.", inputs=()),
    rows_of(NAME)("fail", SWITCH, "For audit: exit code 1 if an entry should go.", default=False, inputs=()),
    rows_of(NAME)(
        HISTORY.name,
        HISTORY.type,
        "For audit: history file, which says which tests are stable now.",
        inputs=(),
    ),
)
