"""The work of ``disttest flaky TEST``, and its findings about the test as lines and as JSON."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from disttest.cli.stored_run import read_run
from disttest.clock import monotonic
from disttest.errors import ExitCode, UsageError
from disttest.extras.bisect.child_runs import (
    RUN,
    cancel_in_order,
    environ_of_runs,
    forwarded,
    new_folder,
    run_child,
)
from disttest.extras.flaky.causes import Cause, Perturbation, Tally
from disttest.extras.flaky.measure import Enough, Measurement, Outcomes, Trial
from disttest.extras.flaky.perturbations import perturbations
from disttest.extras.history.rates import describe_rate, wilson
from disttest.extras.history.records import is_quarantined
from disttest.model import Cause as FailureCause
from disttest.model import Frozen, Invocation, TestCase
from disttest.options.registry import RUN_OPTIONS
from disttest.options.run import filled, resolve_options
from disttest.planning.targets import Targets, resolve_targets
from disttest.reports.text import one_line
from disttest.results.fold import RunResult, TestOutcome
from disttest.results.repeat import quote, seen_from_start
from disttest.runtime.controller.devices import make_devices
from disttest.runtime.supervisor.listing import Collection, collect_tests

OWN = ("results", "repeat", "retries", "deadline", "seed", "isolation", "one-world", "slots", "perturb")
"""Options of a run that a trial decides."""
# New processes, with nothing left of the run before. A retry would hide that the machine spoils runs, which
# is counted.
_ALWAYS = ("--isolate-files=true", "--infra-retries=0", "--resident=false")


class StartFolder(Frozen):
    """The folder of node ids, and the one where the command was started."""

    root: str
    invocation: Invocation


class TrialRuns(Frozen):
    """Runs trials of one test."""

    test: TestCase
    place: StartFolder
    options: tuple[str, ...]
    """Options that the user gave, for each run."""
    pytest_args: tuple[str, ...]
    environ: dict[str, str]
    results: Path
    ends_at_s: float
    until_fail: bool

    def attempt(self, trial: Trial) -> Outcomes:
        """Run a trial.

        Raises:
            Enough: no time is left.
            UsageError: the test cannot run.
        """
        left_s = (self.ends_at_s - monotonic()) * trial.share
        if left_s < 0.1:  # --deadline 0.0 would be none
            raise Enough
        folder = self.results / f"{1 + sum(1 for each in self.results.iterdir() if each.is_dir()):03}"
        folder.mkdir()
        argv = [*RUN, *self._words(trial), *_ALWAYS]
        argv += ["--repeat", str(trial.times), "--results", str(folder), "--deadline", f"{left_s:.1f}"]
        argv += ["--", *["-x"] * self.until_fail, *self.pytest_args]
        output = folder.with_suffix(".txt")
        # Its exit code is not looked at: the journal has each repetition, also those of a run that its
        # deadline ended.
        run_child(argv, Path.cwd(), self.environ, output)
        try:
            run = read_run(folder)
        except UsageError:
            last = output.read_text(errors="replace").strip().rpartition("\n")[2]
            raise UsageError(f"the test cannot run: {one_line(last, 300)}") from None
        if run.collection_errors:
            raise UsageError(
                f"the test cannot be collected: {one_line(run.collection_errors[0].message, 300)}"
            )
        return outcomes_of(run, self.test.nodeid)

    def command(self, trial: Trial, is_certain: bool) -> str:
        """Return the command line that repeats a trial: once if that is certain to fail."""
        again = () if is_certain else ("--repeat", "until-fail")
        arguments = ("--", *self.pytest_args) if self.pytest_args else ()
        isolated = () if self.test.world else ("--isolate-files",)
        words = ["disttest", "run", *self._words(trial), *isolated, *again, *arguments]
        return " ".join(map(quote, words))

    def _words(self, trial: Trial) -> list[str]:
        targets = [seen_from_start(nodeid, self.place) for nodeid in (*trial.before, self.test.selected_by)]
        seed = ("--seed", str(trial.seed)) if trial.seed else ()
        return [*targets, *self.options, *trial.words, *seed]


def outcomes_of(run: RunResult, nodeid: str) -> Outcomes:
    """Return the outcome of each repetition of a test in a run."""
    failed: dict[int, bool] = {}
    spoiled = 0
    broken = []
    for test in run.tests:
        # Repetitions of `test_x.py::test_a[2xgloo]` have the ids `test_x.py::test_a[2xgloo]#2` and so on.
        name, _, number = test.test.nodeid.removeprefix(nodeid).partition("#")
        if name or not test.test.nodeid.startswith(nodeid):
            broken += [test.test.selected_by] * test.final.outcome.is_bad
            continue
        if _is_spoiled(test):
            # Tests that a run had no time for are of the same kind.
            spoiled += run.exit_code in (ExitCode.PASSED, ExitCode.FAILED, ExitCode.INFRASTRUCTURE)
        # A failure in quarantine is an expected one in the run, but counts here.
        elif test.final.outcome.has_run:
            failed[int(number or 1)] = test.final.outcome.is_bad or is_quarantined(test)
    return Outcomes(failed=failed, spoiled=spoiled, broken=tuple(broken))


def _is_spoiled(test: TestOutcome) -> bool:
    return test.final.outcome.is_bad and test.final.cause is FailureCause.INFRASTRUCTURE


_WIDTH = len("after others")


class Row(Frozen):
    """The numbers of one perturbation; ``low`` and ``high`` are Wilson's interval with 95 % confidence."""

    name: str
    failed: int
    ran: int
    spoiled: int
    rate: float
    low: float
    high: float


class Report(Frozen, omit_defaults=False):
    """The findings about a test."""

    test: str
    cause: Cause
    confidence: float
    by: str
    rows: tuple[Row, ...]
    command: str
    """Command that reproduces the failure with the smallest perturbation; empty if the test never failed."""
    untried: tuple[str, ...] = ()
    """Rows for which the time did not suffice, although the cause is not known."""

    @property
    def has_failed(self) -> bool:
        """Whether any run failed or was spoiled by the machine, or none ended."""
        return self.cause is not Cause.NEVER_FAILED


def report_on(nodeid: str, measurement: Measurement, command: Callable[[Trial, bool], str]) -> Report:
    """Return the findings.

    Args:
        nodeid: the test.
        measurement: its numbers so far.
        command: returns the command line of a trial, given whether it is certain to fail.
    """
    verdict, trial = measurement.verdict, measurement.smallest
    # Then one run is enough to see the failure. Otherwise the command repeats until it fails.
    certain = verdict.cause in (Cause.DETERMINISTIC, Cause.SEED) or bool(trial and trial.before)
    return Report(
        test=nodeid,
        cause=verdict.cause,
        confidence=verdict.confidence,
        by=verdict.by,
        rows=tuple(
            _row(name, tally) for name, tally in {"plain": measurement.plain, **measurement.perturbed}.items()
        ),
        command=command(trial, certain) if trial else "",
        untried=measurement.untried,
    )


def _row(name: str, tally: Tally) -> Row:
    low, high = wilson(tally.failed, tally.ran)
    return Row(
        name=name,
        failed=tally.failed,
        ran=tally.ran,
        spoiled=tally.spoiled,
        rate=tally.rate,
        low=low,
        high=high,
    )


def describe_row(name: str, tally: Tally) -> str:
    """Format the numbers of a perturbation."""
    spoiled = f", and the machine spoiled {tally.spoiled}" if tally.spoiled else ""
    return f"  {name:{_WIDTH}}  {describe_rate(tally.failed, tally.ran)}{spoiled}"


def describe(report: Report, *, interrupted: bool) -> Iterator[str]:
    """Yield the last lines about a test."""
    # Never 100 %: the numbers of a sample prove nothing.
    sure = f" ({min(99.9, 100 * report.confidence):.1f} % sure)" if report.confidence else ""
    by = f", shown by {report.by}" if report.by else ""
    yield f"cause: {report.cause}{by}{sure}"
    if "plain" in report.untried and not interrupted:
        yield "no plain run ended: the test was skipped, or it needs more time than --budget gives"
    elif report.untried:
        why = "" if interrupted else "; give more time with --budget"
        yield f"not tried: {', '.join(report.untried)}{why}"
    if report.command:
        yield f"again: {report.command}"


USUAL = Path("results-flaky")
_REFUSED = ("retries", "deadline", "isolation", "one-world", "slots", "perturb")
_EVEN = 20
"""Repetitions in each run of the first round, without ``--repeat``."""
_INTERRUPTED = 130


class _Request(Frozen):
    """The request of the user."""

    flags: dict[str, str | None]
    pytest_args: tuple[str, ...]
    budget_s: float
    until_fail: bool
    to_stderr: bool
    """Whether standard output is for the JSON alone."""
    results: Path
    seed: int
    device: str
    """Type of the devices of runs, which tests without a world may use, too."""

    def show(self, line: str) -> None:
        """Print a line."""
        click.echo(line, err=self.to_stderr)


def run_measurement(targets: tuple[str, ...], pytest_args: Sequence[str], given: Mapping[str, Any]) -> int:
    """Measure each test, print the findings, and return the exit code.

    Raises:
        UsageError: an option makes no sense, or a test cannot run.
    """
    flags = {option.field: given.get(option.field) for option in RUN_OPTIONS}
    options = resolve_options(flags)
    if refused := [f"--{name}" for name in _REFUSED if flags[name.replace("-", "_")]]:
        raise UsageError(
            f"leave {refused[0]} out: disttest flaky decides it; --budget is the limit of the time"
        )
    resolved = resolve_targets(targets)
    # Without --repeat, which would list each repetition as a separate test.
    collected = {name: text for name, text in flags.items() if name != "repeat"}
    chosen = _collected(resolved, collected, pytest_args)
    # Whole files: the cause may be a test that the user did not select.
    files = {str(Path(chosen.root, test.file)) for test in chosen.tests}
    known = chosen if resolved.bundled else _collected(resolve_targets(tuple(sorted(files))), collected, ())
    # From here on an interruption still reports the measurements so far.
    cancel_in_order()
    request = _Request(
        flags=flags,
        pytest_args=tuple(pytest_args),
        budget_s=given["budget"] / len(chosen.tests),
        until_fail=given["until_fail"],
        to_stderr=given["json"] == "-",
        results=new_folder(Path(flags["results"]) if flags["results"] else USUAL),
        seed=options.seed,
        device=make_devices(options).device,
    )
    place = StartFolder(
        root=chosen.root, invocation=Invocation(cwd=str(Path.cwd()), bundled=resolved.bundled)
    )
    reports, interrupted = [], False
    for number, test in enumerate(chosen.tests, 1):
        report, interrupted = _measure(request, place, test, known.tests, number)
        reports.append(report)
        if interrupted:
            break
    _write_json(given["json"], reports)
    if interrupted:
        return _INTERRUPTED
    return ExitCode.FAILED if any(report.has_failed for report in reports) else ExitCode.PASSED


def _collected(targets: Targets, flags: Mapping[str, str | None], pytest_args: Sequence[str]) -> Collection:
    with tempfile.TemporaryDirectory(prefix="disttest-flaky-") as folder:
        collection = collect_tests(targets, filled(flags, Path(folder)), pytest_args, Path(folder))
    if collection.exit_code or not collection.tests:
        click.echo(collection.output, err=True)
        raise UsageError("the test cannot be collected (see above)")
    return collection


def _measure(
    request: _Request, place: StartFolder, test: TestCase, known: Sequence[TestCase], number: int
) -> tuple[Report, bool]:
    """Measure a test. Return the findings, and whether the user interrupted the measurement."""
    runs = TrialRuns(
        test=test,
        place=place,
        options=tuple(forwarded(request.flags, OWN)),
        pytest_args=request.pytest_args,
        environ=environ_of_runs(request.flags),
        results=request.results / f"{number:03}",
        ends_at_s=monotonic() + request.budget_s,
        until_fail=request.until_fail,
    )
    runs.results.mkdir()
    request.show(f"flaky: {test.nodeid}; results in {request.results.name}/{number:03}")
    repeat = request.flags["repeat"]
    measurement = Measurement(
        test.nodeid,
        [each.selected_by for each in known if _share(each, test)],
        table_of(test, request.device),
        runs.attempt,
        lambda name, tally: request.show(describe_row(name, tally)),
        times=int(repeat) if repeat and repeat.isdecimal() else _EVEN,
        seed=request.seed,
        until_fail=request.until_fail,
    )
    interrupted = False
    try:
        measurement.measure()
    except KeyboardInterrupt:
        interrupted = True
    report = report_on(test.nodeid, measurement, runs.command)
    request.show("\n".join(describe(report, interrupted=interrupted)))
    return report, interrupted


def table_of(test: TestCase, device: str) -> tuple[Perturbation, ...]:
    """Return the perturbations of a test in runs on devices of a type."""
    shape = test.world
    on_cpu = (shape.device if shape else device) == "cpu"
    return perturbations(len(os.sched_getaffinity(0)), shape.size if shape else 1, on_cpu=on_cpu)


def _share(other: TestCase, test: TestCase) -> bool:
    """Return whether another test can run in the same processes."""
    return other.selected_by != test.selected_by and (other.file, other.world, other.kind) == (
        test.file,
        test.world,
        test.kind,
    )


def _write_json(path: str | None, reports: Sequence[Report]) -> None:
    if not path:
        return
    text = msgspec.json.format(msgspec.json.encode({"version": 1, "tests": reports}), indent=2).decode()
    if path == "-":
        click.echo(text)
        return
    try:
        Path(path).write_text(f"{text}\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
