"""What happens, as events of a journal: the vocabulary that the controller and the client of a cluster share."""

from __future__ import annotations

from collections.abc import Sequence

from disttest.model import CpuStep, TestResult, WorldShape
from disttest.results.events import Event, Noted, TestFinished, TestStarted, WorldEnded, WorldStarted
from disttest.results.journal import Journal


class EventWriter:
    """One method for each thing that can happen."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.now = journal.now

    def event(self, event: Event) -> None:
        """Append an event as it is."""
        self.journal.append(event)

    def world_started(self, world_id: str, shape: WorldShape, slots: Sequence[str], pid: int = 0) -> None:
        """A world holds slots, by their names; its process, if it has one here."""
        self.event(WorldStarted(at_s=self.now(), world_id=world_id, shape=shape, slots=tuple(slots), pid=pid))

    def world_ended(self, world_id: str, reason: str = "", cpu_steps: tuple[CpuStep, ...] = ()) -> None:
        """A world has let go of its slots."""
        self.event(WorldEnded(at_s=self.now(), world_id=world_id, reason=reason, cpu_steps=cpu_steps))

    def test_started(self, nodeid: str, *, attempt: int = 1, world_id: str = "") -> None:
        """An attempt began."""
        self.event(TestStarted(at_s=self.now(), nodeid=nodeid, attempt=attempt, world_id=world_id))

    def test_finished(self, result: TestResult, *, again: bool = False) -> None:
        """An attempt was judged; ``again``: there will be another one."""
        self.event(TestFinished(at_s=self.now(), result=result, again=again))

    def noted(self, message: str, nodeid: str = "", *, shown: bool = False) -> None:
        """Something a reader should know; ``shown``: pytest's terminal has it."""
        self.event(Noted(at_s=self.now(), message=message, nodeid=nodeid, shown=shown))
