"""Common output of all jobs of a run: one journal, one tree of logs, a line on the terminal for each test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

import msgspec

from disttest.errors import JournalError
from disttest.model import TestResult
from disttest.reports.text import rank_tag
from disttest.results.conclusion import Conclusion
from disttest.results.directory import Home
from disttest.results.events import Event
from disttest.results.journal import EventWriter, Journal, end_for_want_of_room
from disttest.runtime.messages.protocol import clean_text


class JobRecorder(EventWriter):
    """Recorder shared by the threads that conduct the jobs."""

    def __init__(self, journal: Journal, home: Home, tell: Callable[[str], None]) -> None:
        super().__init__(journal)
        self._home = home
        self._tell = tell
        # Reentrant: an event and its line on the terminal belong together.
        self._lock = threading.RLock()
        self.ends: list[Conclusion] = []
        """How the run of each node that leased tests has ended."""
        self.lost = ""
        """The reason why results cannot be written any more, so that the run must end; empty while they can."""

    def event(self, event: Event) -> None:
        """Append an event unchanged."""
        with self._lock:
            try:
                super().event(event)
            except JournalError as error:  # the journal keeps this event and all later ones in memory
                self._lose(str(error))

    def world_ended(self, world_id: str, reason: str = "") -> None:
        """Record that a world has released its slots."""
        super().world_ended(world_id, clean_text(reason))

    def test_finished(self, result: TestResult, *, again: bool = False) -> None:
        """Record the verdict of a test or attempt, and print it."""
        result = _clean(result)
        what = "AGAIN" if again else result.outcome.upper()
        tried = f" (attempt {result.attempt})" if again or result.attempt > 1 else ""
        with self._lock:
            # Under one lock with its lines, so that threads do not mix the lines of two tests.
            super().test_finished(result, again=again)
            self._print(f"{what:<8} {result.nodeid}{tried}  {result.duration_s:.2f} s")
            if result.outcome.is_bad:
                self._print(f"         {result.message}")

    def noted(self, message: str, nodeid: str = "", *, shown: bool = False) -> None:
        """Record a note for the reader."""
        super().noted(clean_text(message), nodeid, shown=shown)

    def show_progress(self, message: str) -> None:
        """Print progress on the terminal only."""
        with self._lock:
            self._print(message)

    def output(self, rank: int, lines: Sequence[str]) -> None:
        """Print output of a running rank on the terminal only: it comes again with the log."""
        tag = rank_tag(rank, colour=True)
        self.show_progress("\n".join(f"{tag} {clean_text(line)}" for line in lines))

    def log(self, path: str, text: str) -> None:
        """Write a rank's log. It comes from another machine, so a path outside the tree of logs is dropped."""
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts or relative.parts[:1] != ("logs",):
            self.noted(f"a node sent a log for {path!r}, which is not below logs/; it was dropped")
            return
        results = self._home.now()
        target = results / relative
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(clean_text(text), encoding="utf-8")
        except OSError as error:
            self._lose(end_for_want_of_room(results, error))

    def _print(self, text: str) -> None:
        # Names of tests, and the words of schedulers and nodes, may contain a secret.
        self._tell(clean_text(text))

    def _lose(self, why: str) -> None:
        with self._lock:
            self.lost = self.lost or why


def _clean(result: TestResult) -> TestResult:
    """Remove characters that no report can contain from the texts of schedulers and nodes."""
    return msgspec.structs.replace(
        result,
        message=clean_text(result.message),
        details=clean_text(result.details),
        notes=tuple(map(clean_text, result.notes)),
    )
