"""What a rank was doing: the Python stacks of all its threads, and the collectives it had called.

faulthandler answers a real-time signal from C, so it works while the rank waits in a collective, and
writes to a file of its own, so that the dump can be told from the rank's output.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from disttest.host.process import STACKS_SIGNAL, Child, process_state
from disttest.masking import masker
from disttest.model import Collective
from disttest.results.explain import PROCESS_STATE
from disttest.results.narrative import STACKS_HEADING as STACKS_HEADING
from disttest.running.flight import ask, read_answer

_STOPPED = "stopped (SIGSTOP, or a debugger)"
_STATES = {
    "T": _STOPPED,
    "t": _STOPPED,
    "D": "in an uninterruptible sleep in the kernel (a device or a file system)",
}

_LOOK_S = 0.01
_SETTLED_LOOKS = 10
"""An answer without a known end counts as whole once it has not grown for so many looks."""
_LINE = 1024
_BOTTOM = re.compile(rb"( in (<module>|_run_module_as_main)|\n  \.\.\.)\n$")
_MOST_KEPT = 64 * 1024


class Testimony(NamedTuple):
    """What a rank that is about to be ended was doing."""

    stacks: str = ""
    collectives: tuple[Collective, ...] = ()


class EvidenceSource:
    """A rank that can be asked for its stacks and its collectives."""

    def __init__(self, child: Child, path: Path, questions: Path | None = None) -> None:
        self._child = child
        self._path = path
        self._questions = questions
        self._seen = 0
        self._flight: Path | None = None

    def ask(self, flight: Path) -> None:
        """Ask for both; a rank that has not set up its signal handler yet is not asked for stacks.

        Args:
            flight: where its collectives are to be written.
        """
        if self._questions is not None and ask(self._questions, flight):
            self._flight = flight
        if self._path.exists():
            self._seen = self._path.stat().st_size
            self._child.signal(STACKS_SIGNAL)

    def state(self) -> str:
        """Why it can not answer at all, in words; empty for a process that runs or waits."""
        return _STATES.get(process_state(self._child.pid), "")

    def answer_size(self) -> int:
        """Bytes that have arrived since the question."""
        return self._path.stat().st_size - self._seen if self._path.exists() else 0

    def has_told_stacks(self) -> bool:
        """Whether the answer ends where the main thread begins, which faulthandler tells last."""
        with self._path.open("rb") as file:
            file.seek(max(self._seen, file.seek(0, os.SEEK_END) - _LINE))
            return _BOTTOM.search(file.read()) is not None

    def has_told_flight(self) -> bool:
        """Whether its collectives are there, or will never be."""
        return self._flight is None or self._flight.exists()

    def read(self) -> Testimony:
        """The answers so far."""
        told = self._flight is not None and self._flight.exists()
        stacks = self._stacks()
        if not stacks and (state := self.state()):
            stacks = f"{PROCESS_STATE}{state}"
        return Testimony(stacks, read_answer(self._flight) if told and self._flight else ())

    def _stacks(self) -> str:
        """Most recent call first, as faulthandler has it."""
        if not self._path.exists():
            return ""
        with self._path.open("rb") as file:
            file.seek(self._seen)
            return masker.data(file.read(_MOST_KEPT)).decode("utf-8", "replace").strip()


def question(asked: Sequence[tuple[EvidenceSource, Path]], *, limit_s: float) -> list[Testimony]:
    """Ask all at once, wait until the answers are there (or for the limit), return one testimony for each."""
    for source, flight in asked:
        source.ask(flight)
    sources = [source for source, _ in asked]
    deadline = time.monotonic() + limit_s
    history: list[list[int]] = []
    while time.monotonic() < deadline:
        sizes = [source.answer_size() for source in sources]
        history = [*history[-_SETTLED_LOOKS:], sizes]
        silent = [source for source, size in zip(sources, sizes, strict=True) if not size]
        speaking = [source for source in sources if source not in silent]
        settled = len(history) > _SETTLED_LOOKS and all(earlier == sizes for earlier in history)
        whole = settled or all(source.has_told_stacks() for source in speaking)
        told = all(source.has_told_flight() for source in speaking)
        if whole and told and all(source.state() == _STOPPED for source in silent):
            break
        time.sleep(_LOOK_S)
    return [source.read() for source in sources]
