"""What the command sees of a run while it lasts: the journal as it grows, and what pytest prints.

Both go to the view, if there is one; the journal goes into the result as well, so that little is left to do when
the run ends, however it ends.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypedDict

from disttest.limits import OUTPUT_STALL_S
from disttest.masking import MaskedStream, masker
from disttest.output import outlet
from disttest.reports.views import RunView
from disttest.results.events import AnyEvent, RunFinished
from disttest.results.fold import Folding
from disttest.results.journal import JournalFollower

_BLOCK = 1 << 16
# Read at a time, so that a flood does not keep us from everything else.
_MOST_BLOCKS = 16


class Outputs(TypedDict, total=False):
    """Where the child prints, unless it prints where we do."""

    stdout: int
    stderr: int


class Watch:
    """Follows one run.

    Args:
        journal: must exist.
        view: None leaves the terminal to pytest.
        now: the clock of the events.
    """

    def __init__(self, journal: Path, view: RunView | None, now: Callable[[], float]) -> None:
        self.folding = Folding()
        self.trouble = ""
        """Why the view was given up, in the middle of the run."""
        self.cut_short = False
        """Whether the child died over a line of the journal; known when all is closed."""
        self._follower = JournalFollower(journal)
        self._view = view
        self._now = now
        self._session_ended = False
        self._outputs: list[_Output] = []

    def outputs(self) -> Outputs:
        """Where the next child is to print to; afterwards call :meth:`child_started`."""
        if self._view is None:
            return {}
        self._session_ended = False
        self._outputs = output, errors = [_Output(error=False), _Output(error=True)]
        return {"stdout": output.writer, "stderr": errors.writer}

    def child_started(self, poller: select.poll) -> None:
        """The child has its ends of the pipes: have ``poller`` wake us for what comes out of them."""
        for output in self._outputs:
            os.close(output.writer)
            poller.register(output.reader, select.POLLIN)

    def look(self, poller: select.poll | None = None) -> None:
        """See what is new. What the terminal does not take is kept; once that is much, all else waits, not for ever."""
        behind = outlet() if self._view is not None else None
        stalled_s = behind.stalled_s if behind else 0.0
        if behind and stalled_s and behind.is_laden:
            if stalled_s < OUTPUT_STALL_S:
                return
            self._give_up("the terminal took nothing any more")
        # What pytest printed before the end of its session stands above what the journal says, since its header
        # does; what it printed after that stands below: its summary comes when all is told.
        texts = self._new_texts(poller)
        events = list(self._follower.new_events())
        if any(isinstance(event, RunFinished) for event in events):
            self._session_ended = True
        if not self._session_ended:
            self._show(texts)
        self._take(events)
        if self._session_ended:
            self._show(texts)
        if not stalled_s:  # pictures that nobody sees are not kept
            self._tell(lambda view: view.tick(self._now()))

    def child_ended(self) -> None:
        """The child is gone, and all that it started: see what is left."""
        self._take(self._follower.new_events())
        while texts := self._new_texts(None):
            self._show(texts)
        for output in self._outputs:
            os.close(output.reader)
        self._outputs = []

    def close(self) -> None:
        """There will be no other child."""
        self._take(self._follower.close())
        self.cut_short = self._follower.cut_short
        self._tell(lambda view: view.close())

    def take(self, event: AnyEvent) -> None:
        """Add an event of our own, which nobody has to show."""
        self.folding.take(event)

    def _take(self, events: Iterable[AnyEvent]) -> None:
        for event in events:
            self.folding.take(event)
            self._tell(lambda view, event=event: view.take(event))  # type: ignore[misc]

    def _show(self, texts: Iterable[tuple[str, bool]]) -> None:
        for text, error in texts:
            self._tell(lambda view, text=text, error=error: view.show(text, error=error))  # type: ignore[misc]

    def _new_texts(self, poller: select.poll | None) -> list[tuple[str, bool]]:
        """What pytest printed, and whether on its error output."""
        texts = [(text, output.error) for output in self._outputs for text in output.read()]
        for output in self._outputs:
            if output.ended and poller is not None:
                with contextlib.suppress(KeyError):
                    poller.unregister(output.reader)
        return texts

    def _tell(self, tell: Callable[[RunView], None]) -> None:
        if self._view is None:
            return
        try:
            tell(self._view)
        except Exception as error:  # noqa: BLE001 - a terminal that is gone must not take the run with it
            self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, why: str) -> None:
        view, self._view = self._view, None
        self.trouble = why
        with contextlib.suppress(Exception):
            if view is not None:
                view.close()


class _Output:
    """One stream of the child: bytes in, text out."""

    def __init__(self, *, error: bool) -> None:
        self.error = error
        self.ended = False
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._masked = MaskedStream(masker)

    def read(self) -> Iterator[str]:
        """Yield what is there now, but not without end."""
        for _ in range(_MOST_BLOCKS):
            try:
                block = os.read(self.reader, _BLOCK)
            except BlockingIOError:
                return
            masked = self._masked.feed(block) if block else self._masked.finish()
            if text := self._decode(masked, final=not block):
                yield text
            if not block:
                self.ended = True
                return
