"""Follow a run from the command: the growing journal, and pytest's output.

Both go to the view, if there is one. The events are also folded into the result, so that little work remains when the
run ends, in whatever way.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypedDict

from disttest.limits import OUTPUT_STALL_S
from disttest.outgoing import FilteredStream, outgoing
from disttest.output import outlet
from disttest.reports.views import RunView
from disttest.results.events import AnyEvent, RunFinished
from disttest.results.fold import Folding
from disttest.results.journal import JournalFollower

_BLOCK = 1 << 16
# Blocks per read, so that a flood of output does not delay everything else.
_MOST_BLOCKS = 16


class Outputs(TypedDict, total=False):
    """Outputs of the child, unless it inherits those of this process."""

    stdout: int
    stderr: int


class Watch:
    """Follows one run.

    Args:
        journal: path of the journal, which must exist.
        view: the view; None leaves the terminal to pytest.
        now: the clock of the events.
    """

    def __init__(self, journal: Path, view: RunView | None, now: Callable[[], float]) -> None:
        self.folding = Folding()
        self.trouble = ""
        """The reason why the view was given up during the run; empty if it was not."""
        self.cut_short = False
        """Whether the child died while writing a line of the journal; known after :meth:`close`."""
        self._follower = JournalFollower(journal)
        self._view = view
        self._now = now
        self._session_ended = self._held_back = False
        self._outputs: list[_Output] = []

    def outputs(self) -> Outputs:
        """Create the outputs of the next child; call :meth:`child_started` afterwards."""
        if self._view is None:
            return {}
        self._session_ended = False
        # Pipes, because two writers on one terminal would tear the live view apart.
        self._outputs = output, errors = [_Output(error=False), _Output(error=True)]
        return {"stdout": output.writer, "stderr": errors.writer}

    def child_started(self) -> None:
        """Close the child's ends of the pipes."""
        for output in self._outputs:
            os.close(output.writer)

    def readers(self) -> list[int]:
        """Return the descriptors that become readable when :meth:`look` has output to read."""
        # Unread output is ready all the time, so while the terminal holds it back the wait would end immediately.
        return [output.reader for output in self._outputs if not (output.ended or self._held_back)]

    def look(self) -> None:
        """Handle new events and output.

        Output that the terminal does not accept is kept. Beyond a limit everything else waits for the terminal, but not
        forever.
        """
        behind = outlet() if self._view is not None else None
        stalled_s = behind.stalled_s if behind else 0.0
        laden = behind is not None and stalled_s > 0 and behind.is_laden
        self._held_back = laden and stalled_s < OUTPUT_STALL_S
        if self._held_back:
            return
        if laden:
            self._give_up("the terminal accepted no more output")
        # Output printed before the end of pytest's session precedes the events in the view, because pytest's header
        # does. Later output follows them, because pytest's summary does.
        texts = self._new_texts()
        # Read before showing, so that the order of output and events is known.
        events = list(self._follower.new_events())
        if any(isinstance(event, RunFinished) for event in events):
            self._session_ended = True
        if not self._session_ended:
            self._show(texts)
        self._handle_all(events)
        if self._session_ended:
            self._show(texts)
        # Frames that nothing displays are dropped, not kept.
        if not stalled_s:
            self._call_view(lambda view: view.tick(self._now()))

    def child_ended(self) -> None:
        """Handle the remaining output after the child and its descendants have ended."""
        # Events first: the rest of the output is pytest's summary, which belongs below the last test.
        self._handle_all(self._follower.new_events())
        while texts := self._new_texts():
            self._show(texts)
        for output in self._outputs:
            os.close(output.reader)
        self._outputs = []

    def close(self) -> None:
        """Finish: no other child will start."""
        self._handle_all(self._follower.close())
        self.cut_short = self._follower.cut_short
        self._call_view(lambda view: view.close())

    def handle(self, event: AnyEvent) -> None:
        """Add an event of the supervisor, which the view need not show."""
        self.folding.handle(event)

    def _handle_all(self, events: Iterable[AnyEvent]) -> None:
        for event in events:
            self.folding.handle(event)
            self._call_view(lambda view, event=event: view.handle(event))  # type: ignore[misc]

    def _show(self, texts: Iterable[tuple[str, bool]]) -> None:
        for text, error in texts:
            self._call_view(lambda view, text=text, error=error: view.show(text, error=error))  # type: ignore[misc]

    def _new_texts(self) -> list[tuple[str, bool]]:
        """Read pytest's output; True marks its error output."""
        return [(text, output.error) for output in self._outputs for text in output.read()]

    def _call_view(self, call: Callable[[RunView], None]) -> None:
        if self._view is None:
            return
        try:
            call(self._view)
        except Exception as error:  # noqa: BLE001 - a terminal that is gone must not take the run with it
            self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, why: str) -> None:
        view, self._view = self._view, None
        self.trouble = why
        with contextlib.suppress(Exception):
            if view is not None:
                view.close()


class _Output:
    """One output stream of the child, decoded from bytes to text."""

    def __init__(self, *, error: bool) -> None:
        self.error = error
        self.ended = False
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        # The supervisor must never wait for pytest's output.
        os.set_blocking(self.reader, False)
        # A block may end in the middle of a character, or of a value to hide.
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._masked = FilteredStream(outgoing)

    def read(self) -> Iterator[str]:
        """Yield the available text, up to a limit."""
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
