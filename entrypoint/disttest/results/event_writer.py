"""Write events into a journal; shared by the controller and the client of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from disttest.model import CpuStep, TestResult, WorldShape
from disttest.results.events import Event, Noted, TestFinished, TestStarted, WorldEnded, WorldStarted
from disttest.results.journal import Journal


class EventWriter:
    """One method for each kind of event."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.now = journal.now

    def event(self, event: Event) -> None:
        """Append an event."""
        self.journal.append(event)

    def world_started(self, world_id: str, shape: WorldShape, slots: Sequence[str], pid: int = 0) -> None:
        """Record a world, with the names of its slots and its process id if it runs here."""
        self.event(WorldStarted(at_s=self.now(), world_id=world_id, shape=shape, slots=tuple(slots), pid=pid))

    def world_ended(self, world_id: str, reason: str = "", cpu_steps: tuple[CpuStep, ...] = ()) -> None:
        """Record that a world has released its slots."""
        self.event(WorldEnded(at_s=self.now(), world_id=world_id, reason=reason, cpu_steps=cpu_steps))

    def test_started(self, nodeid: str, *, attempt: int = 1, world_id: str = "") -> None:
        """Record the start of an attempt."""
        self.event(TestStarted(at_s=self.now(), nodeid=nodeid, attempt=attempt, world_id=world_id))

    def test_finished(self, result: TestResult, *, again: bool = False) -> None:
        """Record the result of an attempt; ``again`` says that another one follows."""
        self.event(TestFinished(at_s=self.now(), result=result, again=again))

    def noted(self, message: str, nodeid: str = "", *, shown: bool = False) -> None:
        """Record a note for the reader; ``shown`` says that pytest's terminal has it."""
        self.event(Noted(at_s=self.now(), message=message, nodeid=nodeid, shown=shown))
