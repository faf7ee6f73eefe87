"""Conduct the worlds of a job that spans nodes: keep all nodes in step, and judge from the records of all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from disttest.extras.cluster.client.conductor import Conductor, JobSetting
from disttest.extras.cluster.client.node_verdict import PartitionRecord, is_for_the_job, judge_partitions
from disttest.extras.cluster.protocol.launcher import JobOutcome, JobState
from disttest.extras.cluster.protocol.wire import (
    CloseWorld,
    EndShare,
    EvidenceComplete,
    EvidenceTaken,
    FinishJob,
    FromNode,
    JoinWorld,
    Listening,
    OpenWorld,
    PartitionDone,
    PartitionEnded,
    PartitionUp,
    RankFailed,
    RunShare,
)
from disttest.model import Cause, RankRecord, TestResult
from disttest.results.verdict import is_red, spoiled
from disttest.runtime.controller.retries import Retries
from disttest.runtime.messages.protocol import Message, TestJudged


class SpanningConductor(Conductor):
    """Runs one world and one test at a time. Each step starts when all nodes have finished the one before."""

    def __init__(self, setting: JobSetting) -> None:
        super().__init__(setting)
        self._retries = Retries(setting.options, setting.clock)
        self._numbers = {test.nodeid: number for number, test in enumerate(setting.job.tests)}
        self._worlds = [list(tests) for tests in setting.job.worlds]
        self._number = 0
        self._world_s: float | None = None
        """When the current world was opened; None without a world."""
        self._up: set[int] = set()
        self._gone: set[int] = set()
        self._test: int | None = None
        self._begun: list[int] = []
        """Tests that the current world has begun, in order."""
        # Node -> exception of a plugin's watch that no record has yet.
        self._owed_errors: dict[int, str] = {}
        self._test_s = 0.0
        self._told_failure = False
        self._evidence: set[int] = set()
        self._partitions: dict[int, dict[int, PartitionRecord]] = {}
        self._healthy = True
        self._lost: JobOutcome | None = None
        """Reason why a node's ranks left no record of the running test: their supervisor died."""
        self._judged: dict[int, TestResult] = {}
        """Final verdicts: no other attempt follows."""
        self._pausing = False

    def on_all_ready(self) -> Sequence[Message]:
        """Order the nodes to open the first world."""
        return self._open_next()

    def on_message(self, node: int, message: FromNode) -> Sequence[Message]:
        """Handle the progress of one node; start the next step once all have finished this one."""
        match message:
            case Listening(address=address, port=port):
                return self._join(address, port)
            case PartitionUp():
                self._up.add(node)
                return self._run_next() if self._all(self._up) and self._test is None else ()
            case RankFailed(test=test):
                return self._on_failure(test)
            case EvidenceTaken(test=test):
                return self._on_evidence(node, test)
            case PartitionDone():
                return self._on_partition(node, message)
            case PartitionEnded():
                return self._on_ended(node, message)
        return ()

    def on_tick(self) -> Sequence[Message]:
        """Open the next world when the pause after an infrastructure error is over."""
        return self._open_next() if self._pausing and not self._retries.due_in_s() else ()

    # --- worlds

    def _open_next(self) -> Sequence[Message]:
        # A world that was replaced after a failure has left the rest of its tests in its list.
        self._worlds = [tests for tests in self._worlds if tests]
        if not self._worlds:  # retries come last, each in a separate world
            self._worlds = [[self._numbers[batch.nodeids[0]]] for batch in self._retries.due()]
        self._pausing = not self._worlds and self._retries.open
        if not self._worlds:
            return () if self._pausing else (FinishJob(),)
        self._number += 1
        self._world_s = self._clock()
        # A late `PartitionUp` of the world before cannot come: each node has reported its end.
        self._up, self._gone, self._healthy, self._test = set(), set(), True, None
        self._begun = []
        return (OpenWorld(world=self._number),)

    def _join(self, address: str, port: int) -> Sequence[Message]:
        tests = tuple(self._worlds[0])
        # All tests of a world have one shape, by the division.
        shape = self.job.tests[tests[0]].world
        assert shape is not None
        slots = tuple(
            f"{host}/{shape.device}:{slot}" for host in self.hosts() for slot in range(shape.ranks_per_node)
        )
        self._recorder.world_started(self._world_id, shape, slots)
        attempts = tuple(map(self._attempt_of, tests))
        return (JoinWorld(world=self._number, tests=tests, attempts=attempts, address=address, port=port),)

    def _attempt_of(self, number: int) -> int:
        return self._retries.attempt_of(self.job.tests[number].nodeid)

    @property
    def _world_id(self) -> str:
        return f"{self.job.job_id}.w{self._number}"

    def _on_ended(self, node: int, message: PartitionEnded) -> Sequence[Message]:
        self._gone.add(node)
        for note in message.notes:
            self._recorder.noted(f"world {self._world_id} on node {self._name(node)}: {note}")
        if message.plugin_error:
            self._blame_plugin(node, message.plugin_error)
        if message.failure:
            self._recorder.noted(message.failure)
            return self._lose_share(node, message.failure)
        if not self._all(self._gone):
            return ()
        self._world_s = None
        self._recorder.world_ended(self._world_id)
        return self._open_next()

    def _blame_plugin(self, node: int, error: str) -> None:
        """Turn the world's last test into an error: a plugin that watches the machine failed on a node."""
        message, _, _ = error.partition("\n")
        self._recorder.noted(f"node {self._name(node)}: {message}")
        records = self._partitions.get(self._begun[-1], {}) if self._begun else {}
        if node not in records:
            self._owed_errors[node] = error  # the test is tried again: its next attempt gets the error
            return
        number, record = self._begun[-1], records[node]
        records[node] = msgspec.structs.replace(record, plugin_error=record.plugin_error or error)
        if number in self._judged:
            self._judge(number, self._verdict(number, self._lost))

    def _lose_share(self, node: int, failure: str) -> Sequence[Message]:
        """Handle the death of a node's supervisor: the others are asked to stop.

        A failure that it has recorded counts. Otherwise its ranks leave no record, even if they had passed.
        """
        self._healthy = False
        self._lost = JobOutcome(state=JobState.RUNNING, reason=failure)
        orders: list[Message] = []
        if self._test is not None and self._test not in self._judged:
            orders += self._on_failure(self._test)
            nodeid = self.job.tests[self._test].nodeid
            records = self._partitions.setdefault(self._test, {})
            if node not in records or not any(map(is_red, records[node].ranks)):
                records[node] = PartitionRecord(nodeid=nodeid, node=node, host=self._name(node), ranks=())
            orders += self._judge_if_complete(self._test)
        elif not self._all(self._up) and self._worlds[0]:
            # It never reached a test. The next one is blamed, so that the job does not start worlds forever.
            number = self._worlds[0].pop(0)
            self._judge(number, spoiled(self.job.tests[number].nodeid, failure, at_s=self._recorder.now()))
            orders.append(CloseWorld(world=self._number))
        # The others may have ended before this one, and no further message would open the next world.
        if self._all(self._gone):
            self._world_s = None
            self._recorder.world_ended(self._world_id, failure)
            orders += self._open_next()
        return orders

    # --- tests

    def _run_next(self) -> Sequence[Message]:
        if not self._worlds[0] or not self._healthy:
            self._test = None
            return (CloseWorld(world=self._number),)
        self._test = self._worlds[0].pop(0)
        self._begun.append(self._test)
        self._test_s = self._clock()
        self._told_failure = False
        self._lost = None
        self._evidence = set()
        self._recorder.test_started(
            self.job.tests[self._test].nodeid, attempt=self._attempt_of(self._test), world_id=self._world_id
        )
        return (RunShare(test=self._test),)

    def _on_failure(self, test: int) -> Sequence[Message]:
        # Each node reports the first failure among its own ranks. All nodes get one order.
        if test != self._test or self._told_failure:
            return ()
        self._told_failure = True
        return (EndShare(test=test),)

    def _on_evidence(self, node: int, test: int) -> Sequence[Message]:
        if test == self._test:
            self._evidence.add(node)
        return self._agree(test)

    def _agree(self, test: int) -> Sequence[Message]:
        """Permit ending the ranks when all nodes have their evidence. A node that has finished is not waited for.

        The end of a rank on one node looks like a broken connection on another, which would be blamed for it.
        """
        if test != self._test or not self._evidence:
            return ()
        finished = set(self._partitions.get(test, {}))
        return (EvidenceComplete(test=test),) if self._all(self._evidence | finished | self._gone) else ()

    def _on_partition(self, node: int, message: PartitionDone) -> Sequence[Message]:
        if message.attempt != self._attempt_of(message.test):
            return ()  # a late death in an attempt that already failed
        test = self.job.tests[message.test]
        offset_s = self._offsets_s.get(node, 0.0)
        record = PartitionRecord(
            nodeid=test.nodeid,
            node=node,
            host=self._name(node),
            ranks=tuple(_on_our_clock(rank, offset_s) for rank in message.ranks),
            started_at_s=message.started_at_s + offset_s,
            duration_s=message.duration_s,
            cancelled=message.cancelled,
            by_scheduler=message.by_scheduler,
            plugin_error=message.plugin_error or self._owed_errors.pop(node, ""),
            # A run that its user cancelled lost no node, so its failures are judged like any others.
            given_up=self.failure is not None and self.failure.state is not JobState.CANCELLED,
        )
        self._partitions.setdefault(message.test, {})[node] = record
        self._healthy = self._healthy and message.healthy
        # The later record replaces that of its node, and the verdict is made again.
        if message.test in self._judged:  # a rank died after the verdict of its test
            self._judge(message.test, self._verdict(message.test, None))
            return ()
        return [*self._agree(message.test), *self._judge_if_complete(message.test)]

    def _judge_if_complete(self, test: int) -> Sequence[Message]:
        partitions = self._partitions.get(test, {})
        if not self._all(set(partitions)) or test in self._judged:
            return ()
        cancelled = self.failure is not None and self.failure.state is JobState.CANCELLED
        if is_for_the_job(partitions.values()) and not cancelled:
            return ()  # the job is ending; its reason will be known in a moment
        verdict = self._verdict(test, self._lost)
        # A failure on one node leaves the ranks of the others in the middle of a collective.
        self._healthy = self._healthy and not verdict.outcome.is_bad
        self._judge(test, verdict)
        return self._run_next()

    def _verdict(self, number: int, end: JobOutcome | None) -> TestResult:
        return judge_partitions(
            self.job.tests[number],
            tuple(self._partitions.get(number, {}).values()),
            end,
            job_id=self._world_id,
            hosts=self.hosts(),
        )

    def _judge(self, number: int, result: TestResult) -> None:
        """Record a verdict; it is final unless there is a budget for another attempt."""
        test = self.job.tests[number]
        result = msgspec.structs.replace(
            result,
            attempt=self._attempt_of(number),
            started_at_s=result.started_at_s or self._recorder.now(),
            after=self._before(number) if result.outcome.is_bad else (),
        )
        judged = self._retries.counted(TestJudged(result=result))
        result = judged.result
        self._recorder.test_finished(result, again=self._retries.wants_another(result))
        pause_s = self._retries.schedule_retry(test, judged)
        if pause_s is None:
            self._judged[number] = result
            return
        self._judged.pop(number, None)
        self._partitions.pop(number, None)
        if result.cause is Cause.INFRASTRUCTURE:
            self._recorder.noted(
                f"infrastructure, tried again in {pause_s:.1f} s: {result.message}", test.nodeid
            )

    def _before(self, number: int) -> tuple[str, ...]:
        """Return the tests that ran before this one in its world, by the ids that select them."""
        earlier = self._begun[: self._begun.index(number)] if number in self._begun else ()
        return tuple(self.job.tests[each].selected_by for each in earlier)

    # --- the end

    def check_progress(self, now_s: float) -> None:
        """Fail the job if a test has not ended on a node long after its limit, although the node seems alive."""
        limits = self._limits
        if self._test is not None and self._test not in self._judged:
            limit_s = self.job.tests[self._test].timeout_s + limits.overrun_s
            if now_s - self._test_s > limit_s:
                late = [
                    node
                    for node in range(self.job.shape.nodes)
                    if node not in self._partitions.get(self._test, {})
                ]
                names = ", ".join(self._name(node) for node in late)
                self.fail(JobState.NODE_LOST, f"node {names} did not end the test within {limit_s:g} s")
        elif self._world_s is not None and not self._all(self._up) and now_s - self._world_s > limits.start_s:
            self.fail(JobState.NODE_LOST, f"the ranks were not up on all nodes after {limits.start_s:g} s")

    def settle(self, end: JobOutcome) -> None:
        """Judge each test without a verdict from the available records and the scheduler's reason."""
        if self._world_s is not None and self._number:
            self._recorder.world_ended(self._world_id, str(end))
        # First: without nodes there is no further attempt, so each verdict below is final.
        self._retries.stop()
        for number, test in enumerate(self.job.tests):
            if number in self._judged:
                continue
            if self.refusal:
                self._judge(
                    number, spoiled(test.nodeid, f"refused: {self.refusal}", at_s=self._recorder.now())
                )
            elif number in self._partitions or number == self._test:
                self._judge(number, self._verdict(number, end))
            elif self._retries.withdraw(test.nodeid) is not None:
                # The recorded failure stands.
                self._recorder.noted(f"not tried again: its job ended before: {end}", test.nodeid)
            else:
                message = f"did not start: its job ended before: {end}"
                self._judge(number, spoiled(test.nodeid, message, at_s=self._recorder.now()))

    def _all(self, nodes: set[int]) -> bool:
        return len(nodes) == self.job.shape.nodes


def _on_our_clock(record: RankRecord, offset_s: float) -> RankRecord:
    collectives = tuple(msgspec.structs.replace(c, at_s=c.at_s + offset_s) for c in record.collectives)
    return msgspec.structs.replace(record, collectives=collectives)
