"""What all jobs of a run write into: one journal, one tree of logs, one line on the terminal for each test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import PurePosixPath

import msgspec

from disttest.model import TestCase, TestResult, WorldShape
from disttest.results.directory import Home
from disttest.results.events import Event, Noted, TestFinished, TestStarted, WorldEnded, WorldStarted
from disttest.results.journal import Journal
from disttest.runtime.messages.protocol import clean_text


class JobRecorder:
    """Shared by the threads that conduct the jobs."""

    def __init__(self, journal: Journal, home: Home, tell: Callable[[str], None]) -> None:
        self._journal = journal
        self._home = home
        self._tell = tell
        self._lock = threading.Lock()
        self.now = journal.now

    def event(self, event: Event) -> None:
        """Append an event as it is."""
        with self._lock:
            self._journal.append(event)

    def world_started(self, world_id: str, shape: WorldShape, slots: tuple[str, ...]) -> None:
        """A world holds its slots, named ``node/slot``."""
        self.event(WorldStarted(at_s=self.now(), world_id=world_id, shape=shape, slots=slots, pid=0))

    def world_ended(self, world_id: str, reason: str = "") -> None:
        """A world has let go of them."""
        self.event(WorldEnded(at_s=self.now(), world_id=world_id, reason=clean_text(reason)))

    def test_started(self, test: TestCase, world_id: str, attempt: int = 1) -> None:
        """An attempt began."""
        self.event(TestStarted(at_s=self.now(), nodeid=test.nodeid, attempt=attempt, world_id=world_id))

    def test_finished(self, result: TestResult, *, again: bool = False) -> None:
        """A test has its verdict, or another attempt follows; said on the terminal too."""
        result = _clean(result)
        what = "AGAIN" if again else result.outcome.upper()
        tried = f" (attempt {result.attempt})" if again or result.attempt > 1 else ""
        with self._lock:
            self._journal.append(TestFinished(at_s=self.now(), result=result, again=again))
            self._tell(f"{what:<8} {result.nodeid}{tried}  {result.duration_s:.2f} s")
            if result.outcome.is_bad:
                self._tell(f"         {result.message}")

    def noted(self, message: str, nodeid: str = "") -> None:
        """Something that a reader should know."""
        self.event(Noted(at_s=self.now(), message=clean_text(message), nodeid=nodeid))

    def told(self, message: str) -> None:
        """Progress, for the terminal only."""
        with self._lock:
            self._tell(message)

    def log(self, path: str, text: str) -> None:
        """A rank's log. A path that leads out of the tree of logs is dropped: it comes from another machine."""
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts or relative.parts[:1] != ("logs",):
            self.noted(f"a node sent a log for {path!r}, which is no place for logs: dropped")
            return
        target = self._home.now() / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(clean_text(text), encoding="utf-8")


def _clean(result: TestResult) -> TestResult:
    """Text of schedulers and nodes can hold what no report can carry."""
    return msgspec.structs.replace(
        result,
        message=clean_text(result.message),
        details=clean_text(result.details),
        notes=tuple(map(clean_text, result.notes)),
    )
