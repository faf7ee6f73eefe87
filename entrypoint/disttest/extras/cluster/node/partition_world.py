"""Part of a world on one node: its ranks, in step with those of the other nodes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from select import select
from typing import Any

import disttest
from disttest.clock import monotonic
from disttest.descriptors import append_to
from disttest.extras.cluster.limits import EVIDENCE_AGREED_S
from disttest.host.process import Child, spawn_child
from disttest.limits import TICK_S
from disttest.model import Outcome, TestResult
from disttest.options.environment import hash_seed
from disttest.runtime.controller.orders import RankOrder, Shared, given_order
from disttest.runtime.messages.protocol import (
    Channel,
    Dismiss,
    EvidenceAgreed,
    EvidenceReady,
    NodePartition,
    PeerFailed,
    RankFailedFirst,
    RunNext,
    TestJudged,
    WorldOrder,
    WorldUp,
)
from disttest.runtime.rank.child import use_cuda_freely
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.world.attempt import Attempt
from disttest.runtime.world.judged_attempt import JudgedAttempt
from disttest.runtime.world.judging import first_plugin_error
from disttest.runtime.world.world_supervisor import RankStarter, WorldSupervisor


class _SharedAttempt(Attempt):
    """An attempt that reports its first failure to the other nodes."""

    on_failure: Callable[[], None]

    def note_failure(self, at_s: float) -> None:
        """Record the first failure, and report it if it happened on this node."""
        first = self.failed_s is None
        super().note_failure(at_s)
        if first:
            self.on_failure()

    def note_lost_peer(self, at_s: float) -> None:
        """Report it like any other failure: the peer may be on another node, whose ranks are unknown here."""
        self.note_failure(at_s)

    def note_peer_failure(self, at_s: float) -> None:
        """Record a failure on another node: the grace period of the ranks here begins."""
        super().note_failure(at_s)


class PartitionWorld(WorldSupervisor):
    """Supervisor of one node's ranks."""

    def __init__(
        self,
        order: WorldOrder,
        controller: Channel,
        start_rank: RankStarter,
        clock: Callable[[], float],
        *,
        listener: socket.socket | None,
    ) -> None:
        super().__init__(order, controller, start_rank, clock)
        assert order.partition is not None
        self._partition: NodePartition = order.partition
        self._rendezvous = listener
        self._turns = 0
        self._dismissed = False
        self._agreed = False
        self._error_of_test = ""
        self._ranks.on_evidence = self._wait_for_evidence

    def _listen(self) -> socket.socket | None:
        return self._rendezvous

    def _own_ranks(self) -> range:
        return range(self._partition.first_rank, self._partition.first_rank + self._partition.ranks)

    def _master_port(self, listener: socket.socket | None) -> int:
        del listener
        return self._partition.port

    def _start_ranks(self) -> None:
        super()._start_ranks()
        self._controller.send(WorldUp())

    def _run_tests(self) -> None:
        super()._run_tests()
        attempt = self._ranks.attempt
        if attempt is not None and attempt.failed_s is None:
            # Ranks of other nodes may still be in the last test, and use the store of node 0.
            self._wait_for_turn(len(self._order.tests))

    def _may_run(self, index: int) -> bool:
        self._wait_for_turn(index)
        # An agreement is about one test.
        self._agreed = False
        # The wait also ends if the world must end, without this turn.
        return self._turns > index

    def _wait_for_turn(self, index: int) -> None:
        """Wait until all nodes are done with the test before, or until the world ends."""
        while self._turns <= index and not (self._dismissed or self._reason or self._abandoned):
            self._ranks.loop.wait(TICK_S)

    def _scratch(self, generation: int) -> Path:
        shared = self._partition.shared_dir
        return Path(shared, f"shared-{generation}") if shared else super()._scratch(generation)

    def _new_attempt(self, **given: Any) -> Attempt:
        attempt = _SharedAttempt(**given)
        attempt.on_failure = self._report_failure
        return attempt

    def _report_failure(self) -> None:
        self._controller.send(RankFailedFirst())

    def _on_order(self, message: object) -> None:
        attempt = self._ranks.attempt
        match message:
            case RunNext():
                self._turns += 1
            case Dismiss():
                self._dismissed = True
            case EvidenceAgreed():
                self._agreed = True
            case PeerFailed() if isinstance(attempt, _SharedAttempt):
                # The time of its arrival: clocks of two nodes cannot be compared.
                attempt.note_peer_failure(monotonic())
            case _:
                super()._on_order(message)

    def _wait_for_evidence(self) -> None:
        """Keep the ranks unchanged until all nodes have their evidence: the end of one changes the others."""
        self._controller.send(EvidenceReady())
        deadline = monotonic() + EVIDENCE_AGREED_S
        while not (self._agreed or self._reason or self._abandoned) and monotonic() < deadline:
            self._wait_for_controller(deadline - monotonic())

    def _wait_for_controller(self, limit_s: float) -> None:
        # Not the whole loop: a rank that ends meanwhile must not be handled before all nodes agree.
        if select([self._controller], [], [], max(0.0, limit_s))[0]:
            self._on_controller()

    def _judge(self, attempt: JudgedAttempt) -> TestResult:
        """Return the records of these ranks; the client judges with the records of all nodes."""
        self._error_of_test = first_plugin_error(attempt)
        return self._records_of(attempt.attempt)

    def _records_of(self, attempt: Attempt) -> TestResult:
        records = tuple(progress.record(attempt.started_s) for progress in attempt.ranks)
        return TestResult(
            nodeid=attempt.test.nodeid,
            # Only for the type: the client takes the records, and never this outcome.
            outcome=Outcome.PASSED,
            attempt=attempt.number,
            started_at_s=attempt.started_at_s,
            duration_s=monotonic() - attempt.started_s,
            message=attempt.cancelled,
            ranks=records,
            world_id=self._order.world_id,
        )

    def _report(self, attempt: Attempt, result: TestResult, reports: tuple[str, ...] = ()) -> None:
        """Send the records to the controller."""
        del reports
        self._controller.send(
            TestJudged(result=result, healthy=self._is_healthy(attempt), plugin_error=self._error_of_test)
        )


class InterpreterStarter:
    """Starts a rank as ``python -m pytest``, which collects only the files that it needs."""

    def __init__(self, arguments: Sequence[str], modules: Sequence[str], shared: Shared) -> None:
        self._arguments = tuple(arguments)
        self._modules = tuple(modules)
        self._shared = shared

    def __call__(self, spec: RankSpec, channel: Channel, close: Sequence[int]) -> Child:
        """Spawn; descriptors that belong to others are not inherited."""
        del close
        # A new interpreter does not inherit the restrictions that keep this process forkable.
        use_cuda_freely()
        line = channel.fileno()
        order = RankOrder(shared=self._shared, spec=spec, channel_fd=line, modules=self._modules)
        log = append_to(spec.log)
        try:
            with given_order(order, line) as (argument, descriptors):
                return spawn_child(
                    [sys.executable, "-m", "pytest", *self._arguments, argument],
                    extra_env={
                        # Without the variables of ranks: a fork imports its tests without them too, and verdicts must
                        # not differ.
                        **spec.machine_environment(),
                        # The rank must import this very version, even if a test has changed the working directory.
                        "PYTHONPATH": _import_path(),
                        **hash_seed(spec.settings.seed),
                    },
                    pass_fds=descriptors,
                    stdout=log,
                    new_group=True,
                )
        finally:
            os.close(log)


def _import_path() -> str:
    """Put this package first on the import path, whatever the working directory, before the user's own path."""
    ours = str(Path(disttest.__file__).parents[1])
    return os.pathsep.join([ours, *filter(None, [os.environ.get("PYTHONPATH")])])  # noqa: TID251
