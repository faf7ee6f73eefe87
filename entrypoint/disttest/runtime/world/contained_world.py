"""The supervisor of ordinary tests: a world of one process that has no ranks, no group and no rendezvous."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from disttest.model import WorldKind
from disttest.runtime.messages.protocol import Channel, WorldOrder
from disttest.runtime.world.attempt import Attempt
from disttest.runtime.world.judged_attempt import JudgedAttempt
from disttest.runtime.world.started_processes import Descendants
from disttest.runtime.world.world_supervisor import RankStarter, WorldSupervisor


def make_world(
    order: WorldOrder, controller: Channel, start_rank: RankStarter, clock: Callable[[], float]
) -> WorldSupervisor:
    """The supervisor that these tests need."""
    kind = order.tests[0].kind
    return (ContainedWorld if kind is WorldKind.PROCESS else WorldSupervisor)(
        order, controller, start_rank, clock
    )


class ContainedWorld(WorldSupervisor):
    """Watches the process of ordinary tests, and the processes that these start."""

    def _start_ranks(self) -> None:
        super()._start_ranks()
        self._below = Descendants(self._ranks.handles[0].child.pid)
        self._ranks.on_tick = self._look
        self._ranks.on_evidence = self._ask_below

    def _listen(self) -> socket.socket | None:
        return None

    def _log_name(self, rank: int) -> str:
        del rank
        return "output.log"

    def _judged(self, attempt: Attempt) -> JudgedAttempt:
        progress = attempt.ranks[0]
        if progress.death is None and any(report.outcome.is_bad for report in progress.reports):
            self._ranks.read_crash(progress)  # a process that it started may have crashed
        return super()._judged(attempt)

    def _look(self) -> None:
        self._on_shared_memory()
        self._look_below()

    def _look_below(self) -> None:
        if (attempt := self._ranks.attempt) is not None:
            for death in self._below.look():
                progress = attempt.ranks[0]
                progress.deaths_below = "; ".join(filter(None, (progress.deaths_below, death)))
                self._ranks.logs.log(progress.log).append(f"\n[disttest: {death}]\n")

    def _ask_below(self) -> None:
        if (attempt := self._ranks.attempt) is not None:
            self._look_below()
            attempt.ranks[0].below = self._below.describe(Path(self._order.scratch_dir) / "rank0.stacks")
