"""Write the events of a run into the journal; the only writer while the controller lives."""

from __future__ import annotations

from collections.abc import Sequence

import disttest
from disttest.model import ALONE, Cause, Hardware, Invocation, Outcome, TestCase, TestResult, WorldShape
from disttest.results.events import (
    CollectionFailed,
    RunFinished,
    RunStarted,
    TestCollected,
)
from disttest.results.journal import EventWriter, Journal
from disttest.results.verdict import not_run


class RunRecorder(EventWriter):
    """Records the events of a run on this machine, and keeps the counts for its end."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.false_greens: list[str] = []
        """Failed tests that torch's own harness would have passed."""
        self.vacuous: list[str] = []
        """Tests without any rank on this machine, which torch's own harness passes."""
        self.flaky: dict[str, str] = {}
        """Tests that passed only after a retry, each with a line about the earlier failure."""
        self.started: RunStarted | None = None
        self.worlds = 0
        """Number of started worlds; processes of ordinary tests do not count."""
        # Tests without a result, in order.
        self._owed: dict[str, None] = {}
        self.has_failures = False
        """Whether any attempt has failed: its messages name log files."""
        self._ran = False
        self._not_run = 0
        self._failed: dict[str, TestResult] = {}

    def run_started(
        self,
        *,
        run_id: str,
        argv: Sequence[str],
        root: str,
        hardware: Hardware,
        slots: int,
        cpu_slots: int = 0,
        plan_id: str = "",
        shard: int | None = None,
        invocation: Invocation | None = None,
    ) -> None:
        """Record the start of the run."""
        self.started = RunStarted(
            at_s=self.now(),
            run_id=run_id,
            argv=tuple(argv),
            root=root,
            hardware=hardware,
            slots=slots,
            cpu_slots=cpu_slots,
            disttest=disttest.__version__,
            plan_id=plan_id,
            shard=shard,
            invocation=invocation or Invocation(),
        )
        self.event(self.started)

    def collected(self, test: TestCase) -> None:
        """Record a test that must get a result."""
        self._owed[test.nodeid] = None
        self.event(TestCollected(at_s=self.now(), test=test))

    def collection_failed(self, nodeid: str, message: str) -> None:
        """Record a file that could not be collected."""
        self.event(CollectionFailed(at_s=self.now(), nodeid=nodeid, message=message))

    def world_started(self, world_id: str, shape: WorldShape, slots: Sequence[str], pid: int = 0) -> None:
        """Record a world that holds slots."""
        self.worlds += shape != ALONE
        super().world_started(world_id, shape, slots, pid)

    def test_finished(self, result: TestResult, *, again: bool = False) -> None:
        """Record the result of an attempt; ``again`` says that another one follows."""
        super().test_finished(result, again=again)
        self._note_flaky(result)
        self._owed.pop(result.nodeid, None)
        self._ran = self._ran or result.outcome.has_run
        self._not_run += result.outcome is Outcome.NOT_RUN
        self.has_failures = self.has_failures or result.outcome.is_bad
        if result.is_false_green_avoided and result.nodeid not in self.false_greens:
            self.false_greens.append(result.nodeid)
        if result.is_vacuous:
            self.vacuous.append(result.nodeid)

    def not_run(self, reason: str) -> None:
        """Record tests without a result as not run, because the user ended the run (``-x``)."""
        for nodeid in tuple(self._owed):
            self.test_finished(not_run(nodeid, reason, at_s=self.now()))

    def _note_flaky(self, result: TestResult) -> None:
        self.flaky.pop(result.nodeid, None)
        first = self._failed.get(result.nodeid)
        if result.outcome.is_bad:
            known = self._failed.setdefault(result.nodeid, result)
            if result.cause is Cause.INFRASTRUCTURE and known.attempt == result.attempt:
                # The failure was the machine's, not the test's.
                del self._failed[result.nodeid]
        elif first is not None and first.attempt < result.attempt:
            self.flaky[result.nodeid] = (
                f"{result.nodeid}: passed at attempt {result.attempt}; attempt {first.attempt}: {first.message}"
            )

    @property
    def nothing_ran(self) -> bool:
        """Whether tests were scheduled and none was called, apart from skips."""
        return bool(self._not_run) and not self._ran

    def run_finished(self, exit_code: int, reason: str = "") -> None:
        """Record the end of the run."""
        if self.false_greens:
            count = len(self.false_greens)
            self.noted(
                f"torch's own rules would have passed {count} of the failed tests: the reports list them"
            )
        if self.vacuous:
            count = len(self.vacuous)
            self.noted(f"torch passes {count} of the skipped tests vacuously here: the reports list them")
        # The journal's schema has no larger code, as the shell has none.
        self.event(RunFinished(at_s=self.now(), exit_code=exit_code & 0xFF, reason=reason))
