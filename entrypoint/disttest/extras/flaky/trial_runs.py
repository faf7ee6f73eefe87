"""Runs trials of a test as children, and reads their results."""

from __future__ import annotations

from pathlib import Path

from disttest.cli.stored_run import read_run
from disttest.clock import monotonic
from disttest.errors import ExitCode, UsageError
from disttest.extras.bisect.child_runs import RUN, run_child
from disttest.extras.flaky.measure import Enough, Outcomes, Trial
from disttest.extras.history.records import is_quarantined
from disttest.model import Cause, Frozen, Invocation, TestCase
from disttest.reports.text import one_line
from disttest.results.fold import RunResult, TestOutcome
from disttest.results.repeat import quote, seen_from_start

OWN = ("results", "repeat", "retries", "deadline", "seed", "isolation", "one-world", "slots", "perturb")
"""Options of a run that a trial decides."""
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
        left_s = self.ends_at_s - monotonic()
        if left_s <= 0:
            raise Enough
        folder = self.results / f"{1 + sum(1 for each in self.results.iterdir() if each.is_dir()):03}"
        folder.mkdir()
        argv = [*RUN, *self._words(trial), *_ALWAYS]
        argv += ["--repeat", str(trial.times), "--results", str(folder), "--deadline", f"{left_s:.1f}"]
        argv += ["--", *["-x"] * self.until_fail, *self.pytest_args]
        output = folder.with_suffix(".txt")
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
        name, _, number = test.test.nodeid.removeprefix(nodeid).partition("#")
        if name or not test.test.nodeid.startswith(nodeid):
            broken += [test.test.selected_by] * test.final.outcome.is_bad
            continue
        if _is_spoiled(test):
            # Tests that a run had no time for are of the same kind.
            spoiled += run.exit_code in (ExitCode.PASSED, ExitCode.FAILED, ExitCode.INFRASTRUCTURE)
        elif test.final.outcome.has_run:
            failed[int(number or 1)] = test.final.outcome.is_bad or is_quarantined(test)
    return Outcomes(failed=failed, spoiled=spoiled, broken=tuple(broken))


def _is_spoiled(test: TestOutcome) -> bool:
    return test.final.outcome.is_bad and test.final.cause is Cause.INFRASTRUCTURE
