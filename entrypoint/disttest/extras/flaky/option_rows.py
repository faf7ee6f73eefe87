"""The options of flaky tests."""

from __future__ import annotations

from disttest.extras.history.option_rows import FILE as HISTORY
from disttest.options.option import Option, of_every_run, rows_of
from disttest.options.values import SWITCH, path

NAME = "flaky"
USUAL = "flaky.toml"

FILE = of_every_run(
    "quarantine",
    path("FILE"),
    "Tests whose failures do not fail the run until a date.",
    otherwise=f"{USUAL} in pytest's root directory, if it is there",
)

OPTIONS: tuple[Option, ...] = (
    FILE,
    rows_of(NAME)(
        FILE.name, FILE.type, "File with the tests in quarantine.", otherwise=FILE.otherwise, inputs=()
    ),
    rows_of(NAME)("fail", SWITCH, "Exit code 1 if an entry should go.", default=False, inputs=()),
    rows_of(NAME)(
        HISTORY.name, HISTORY.type, "History file, which says which tests are stable now.", inputs=()
    ),
)
