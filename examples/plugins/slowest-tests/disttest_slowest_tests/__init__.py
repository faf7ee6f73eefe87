"""A reporter: it writes ``slowest.md``, a table of the slowest tests of a run."""

from __future__ import annotations

from disttest.hookspecs import hookimpl
from disttest.options.option import Option
from disttest.options.values import WHOLE
from disttest.reports.reporter import Reporter

OPTION = Option(
    name="slowest-tests",
    type=WHOLE,
    help="How many tests are in slowest.md.",
    commands=("run",),
    default=10,
    has_variable=True,
)


@hookimpl
def disttest_addoptions():
    return [OPTION]


@hookimpl
def disttest_addreporters():
    return {"slowest": Reporter("slowest.md", write)}


def write(run, results_dir, history, file):  # noqa: ARG001
    # A report may be written again, later and elsewhere: the record of the run has its options, as text.
    given = run.invocation.options.get(OPTION.name)
    most = OPTION.type.parse(given) if given else OPTION.default
    slowest = sorted(run.tests, key=lambda test: test.final.duration_s, reverse=True)[:most]
    lines = ["| test | seconds |", "|---|---|"]
    lines += [
        f"| {test.test.nodeid.replace('|', chr(92) + '|')} | {test.final.duration_s:.2f} |"
        for test in slowest
    ]
    file.write(("\n".join(lines) + "\n").encode())
