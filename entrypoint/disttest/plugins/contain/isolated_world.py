"""The supervisor of isolated tests: a world of one process without ranks, group and rendezvous."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from disttest.model import TestResult
from disttest.plugins.contain.started_processes import Descendants
from disttest.results.hang_findings import crash_place
from disttest.runtime.world.attempt import Attempt, RankProgress
from disttest.runtime.world.judged_attempt import JudgedAttempt
from disttest.runtime.world.world_supervisor import WorldSupervisor


class IsolatedWorld(WorldSupervisor):
    """Watches the process of isolated tests and the processes that these start."""

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


def with_deaths(result: TestResult, progress: RankProgress) -> TestResult:
    """Return the result of a test with the processes of the test that died.

    Args:
        result: result of the test.
        progress: progress of the process that ran it.
    """
    if not result.outcome.is_bad:
        return result
    if progress.death is None and (place := crash_place(progress.crash)):
        result = msgspec.structs.replace(result, message=f"{result.message} (a process crashed in {place})")
    if not progress.deaths_below:
        return result
    if progress.hung:  # it probably waited for them
        return msgspec.structs.replace(result, message=f"{progress.deaths_below} ({result.message})")
    return msgspec.structs.replace(result, notes=(*result.notes, progress.deaths_below))
