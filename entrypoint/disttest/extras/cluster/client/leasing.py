"""Conduct a lease: take over the journal of its local run, and check it against the records."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from disttest.extras.cluster.client.conductor import Conductor, JobSetting
from disttest.extras.cluster.client.node_verdict import check_lease_result
from disttest.extras.cluster.protocol.launcher import JobOutcome, JobState
from disttest.extras.cluster.protocol.wire import FromNode, JournalLine
from disttest.model import TestCase, TestResult
from disttest.results.conclusion import Conclusion
from disttest.results.events import (
    AnyEvent,
    CollectionFailed,
    Noted,
    RunFinished,
    TestFinished,
    TestStarted,
    WorldEnded,
    WorldStarted,
)
from disttest.results.fold import did_not_finish
from disttest.results.verdict import spoiled
from disttest.runtime.messages.protocol import Message


class LeaseConductor(Conductor):
    """Conductor of one node that works on its own."""

    def __init__(self, setting: JobSetting) -> None:
        super().__init__(setting)
        self._tests: dict[str, TestCase] = {test.nodeid: test for test in setting.job.tests}
        self._finished: set[str] = set()
        self._running: set[str] = set()
        self._failed: dict[str, TestResult] = {}
        """Failed attempts for which the node announced another attempt."""
        self._end: Conclusion | None = None

    def on_all_ready(self) -> Sequence[Message]:
        """Do nothing: the node is already working."""
        return ()

    def on_message(self, node: int, message: FromNode) -> Sequence[Message]:
        """Take over an event of the node's journal."""
        if isinstance(message, JournalLine):
            self._take_over(message.event, self._offsets_s.get(node, 0.0), self._name(node))
        return ()

    def _take_over(self, event: AnyEvent, offset_s: float, host: str) -> None:
        # Two leases give their worlds the same ids.
        prefix = f"{self.job.job_id}."
        at_s = event.at_s + offset_s
        match event:
            case TestFinished(result=result, again=again):
                self._finish(result, offset_s, again=again)
            case TestStarted():
                self._running.add(event.nodeid)
                self._recorder.event(
                    msgspec.structs.replace(event, at_s=at_s, world_id=_prefixed(prefix, event.world_id))
                )
            case WorldStarted():
                slots = tuple(f"{host}/{slot}" for slot in event.slots)
                self._recorder.event(
                    msgspec.structs.replace(event, at_s=at_s, world_id=prefix + event.world_id, slots=slots)
                )
            case WorldEnded():
                self._recorder.event(
                    msgspec.structs.replace(event, at_s=at_s, world_id=prefix + event.world_id)
                )
            case Noted(message=message):
                self._recorder.noted(f"node {host}: {message}")
            case CollectionFailed():
                self._recorder.event(event)
            # Not an event of the merged journal: the client records the end of the whole run.
            # pytest's own, then that of the command, which counts.
            case RunFinished(reason=reason, exit_code=code):
                self._end = Conclusion(code, reason)
            case _:
                pass

    def _finish(self, result: TestResult, offset_s: float, *, again: bool) -> None:
        test = self._tests.get(result.nodeid)
        if test is None:
            self._recorder.noted(f"{result.nodeid}: a node reported this test, which is not in its job")
            return
        result = msgspec.structs.replace(
            check_lease_result(test, result),
            started_at_s=result.started_at_s + offset_s,
            world_id=_prefixed(f"{self.job.job_id}.", result.world_id),
        )
        self._running.discard(result.nodeid)
        self._failed.pop(result.nodeid, None)
        if again:
            # It may have finished before: a rank can die after its test was green.
            self._finished.discard(result.nodeid)
            self._failed[result.nodeid] = result
        else:
            self._finished.add(result.nodeid)
        self._recorder.test_finished(result, again=again)

    def settle(self, end: JobOutcome) -> None:
        """Record how the run of the node ended, and an error with the scheduler's reason for each test without a result."""
        # The end of a job that did not end by itself is a consequence.
        if self._end is not None and end.state is JobState.COMPLETED and not self.refusal:
            self._recorder.ends.append(self._end)
        reason = self._end.reason if self._end is not None else ""
        for nodeid, test in self._tests.items():
            if self.refusal:
                # The node's results came from other sources than the client's.
                self._recorder.test_finished(
                    spoiled(test.nodeid, f"refused: {self.refusal}", at_s=self._recorder.now())
                )
            elif nodeid in self._failed:
                self._let_stand(self._failed[nodeid], end)
            elif nodeid not in self._finished:
                why = f"{end}; {reason}" if reason else str(end)
                message = did_not_finish(f"its job ended: {why}", was_running=nodeid in self._running)
                self._recorder.test_finished(spoiled(test.nodeid, message, at_s=self._recorder.now()))

    def _let_stand(self, failure: TestResult, end: JobOutcome) -> None:
        """Let a failure stand whose next attempt did not start or finish."""
        if failure.nodeid not in self._running:
            self._recorder.noted(f"not tried again: its job ended before: {end}", failure.nodeid)
            return
        number = failure.attempt + 1
        message = f"{failure.message} (attempt {number} was cut short)"
        self._recorder.test_finished(msgspec.structs.replace(failure, attempt=number, message=message))


def _prefixed(prefix: str, world_id: str) -> str:
    return prefix + world_id if world_id else ""
