"""What a rank was doing: the Python stacks of all its threads, and the collectives it had called.

faulthandler answers a real-time signal from C, so it works while the rank waits in a collective, and
writes to a file of its own, so that the dump can be told from the rank's output.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from disttest.clock import monotonic, sleep
from disttest.host.proc import catches, process_state
from disttest.host.process import STACKS_SIGNAL
from disttest.limits import EVIDENCE_POLL_S
from disttest.masking import masker
from disttest.model import Collective
from disttest.results.hang_findings import PROCESS_STATE
from disttest.results.narrative import STACKS_HEADING as STACKS_HEADING
from disttest.runtime.messages.protocol import Raised
from disttest.runtime.rank.flight import ask, read_answer, read_in_flight

_STOPPED = "stopped (SIGSTOP, or a debugger)"
_DEAF = "without its handler of the signal that asks for stacks (the test has reset it)"
_STATES = {
    "T": _STOPPED,
    "t": _STOPPED,
    "D": "in an uninterruptible sleep in the kernel (a device or a file system)",
}

# An answer without a known end counts as whole once it has not grown for so many looks.
_SETTLED_LOOKS = 10
# Of the limit: a rank that has told no stacks by then is asked for its collectives all the same.
_SILENT_SHARE = 0.5
_LINE = 1024
_BOTTOM = re.compile(rb"( in (<module>|_run_module_as_main)|\n  \.\.\.)\n$")
_MOST_KEPT = 64 * 1024


class RankEvidence(NamedTuple):
    """What a rank that is about to be ended was doing."""

    stacks: str = ""
    collectives: tuple[Collective, ...] = ()
    in_flight: Raised | None = None


class Process(Protocol):
    """A living process that can be signalled."""

    @property
    def pid(self) -> int:
        """Its number."""

    def signal(self, signum: int) -> None:
        """Send it a signal; nothing happens if it has ended."""


class EvidenceSource:
    """A rank, or a process below one, that can be asked for its stacks and its collectives."""

    def __init__(self, child: Process, path: Path, questions: Path | None = None) -> None:
        self._child = child
        self._path = path
        self._questions = questions
        self._seen = 0
        self.is_deaf = False
        """Whether it has no handler any more for the signal that asks for stacks, which would end it."""
        self._flight: Path | None = None

    def ask_stacks(self) -> bool:
        """Ask for the stacks, unless the process has not set up its signal handler yet, or has lost it.

        Returns:
            Whether the process was asked.
        """
        answers = self._answers()
        if answers is None:
            return False
        self._seen = answers.stat().st_size
        self.is_deaf = not catches(self._child.pid, STACKS_SIGNAL)
        if not self.is_deaf:
            self._child.signal(STACKS_SIGNAL)
        return not self.is_deaf

    def ask_flight(self, flight: Path) -> None:
        """Ask for the collectives.

        Args:
            flight: where they are to be written.
        """
        if self._questions is not None and ask(self._questions, flight):
            self._flight = flight

    def state(self) -> str:
        """Why it cannot answer at all, in words; empty for a process that runs or waits."""
        return _STATES.get(process_state(self._child.pid), _DEAF if self.is_deaf else "")

    def answer_size(self) -> int:
        """Bytes that have arrived since the question."""
        answers = self._answers()
        return answers.stat().st_size - self._seen if answers else 0

    def has_told_stacks(self) -> bool:
        """Whether the answer ends where the main thread begins, which faulthandler tells last."""
        answers = self._answers()
        if answers is None:
            return False
        with answers.open("rb") as file:
            file.seek(max(self._seen, file.seek(0, os.SEEK_END) - _LINE))
            return _BOTTOM.search(file.read()) is not None

    def has_told_flight(self) -> bool:
        """Whether its collectives are there, or will never be."""
        return self._flight is None or self._flight.exists()

    def read(self) -> RankEvidence:
        """The answers so far."""
        told = self._flight is not None and self._flight.exists()
        stacks = self.stacks()
        if not stacks and (state := self.state()):
            stacks = f"{PROCESS_STATE}{state}"
        return RankEvidence(
            stacks,
            read_answer(self._flight) if told and self._flight else (),
            read_in_flight(self._questions) if self._questions and self._flight else None,
        )

    def stacks(self) -> str:
        """Those that have arrived since the question, the most recent call first, as faulthandler has it."""
        answers = self._answers()
        if answers is None:
            return ""
        with answers.open("rb") as file:
            file.seek(self._seen)
            return masker.data(file.read(_MOST_KEPT)).decode("utf-8", "replace").strip()

    def _answers(self) -> Path | None:
        """Where the rank writes its stacks; in its own hand, if a test has deleted the folder for temporary files."""
        if self._path.exists():
            return self._path
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{self._child.pid}/fd").iterdir():
                if str(entry.readlink()).endswith(f"/{self._path.name} (deleted)"):
                    return entry
        return None


def tell_stacks(sources: Sequence[EvidenceSource], *, limit_s: float) -> list[str]:
    """The stacks of all, asked at once, while the ranks go on; empty for one that has not told them whole in time."""
    for source in sources:
        source.ask_stacks()
    deadline_s = monotonic() + limit_s
    while not all(source.has_told_stacks() for source in sources) and monotonic() < deadline_s:
        sleep(EVIDENCE_POLL_S)
    return [source.read().stacks if source.has_told_stacks() else "" for source in sources]


class StacksAnswer:
    """The answer of one source that was asked for its stacks, while it arrives."""

    def __init__(self, source: EvidenceSource) -> None:
        self._source = source
        self._same_looks = 0
        self.size = 0

    def is_whole(self) -> bool:
        """Look once: whether it ends as stacks do, or has not grown for a while."""
        size = self._source.answer_size()
        self._same_looks = self._same_looks + 1 if size == self.size else 0
        self.size = size
        return size > 0 and (self._same_looks >= _SETTLED_LOOKS or self._source.has_told_stacks())


class _Interview:
    """First the stacks, then the collectives.

    Never both at once: faulthandler walks the frames of every thread as they are, and crashes the rank when one of
    them runs Python meanwhile, as the thread does that tells the collectives.
    """

    def __init__(self, source: EvidenceSource, flight: Path) -> None:
        self.source = source
        self._flight = flight
        self._asked_flight = False
        self._answer = StacksAnswer(source)
        source.ask_stacks()

    def goes_on(self, *, may_wait: bool) -> bool:
        """Look once, ask what comes next; whether there is more to wait for."""
        if not self._asked_flight and (self.source.is_deaf or self._answer.is_whole() or not may_wait):
            self._asked_flight = True
            self.source.ask_flight(self._flight)
        if not self._answer.size and not self.source.is_deaf:
            return self.source.state() != _STOPPED
        return not (self._asked_flight and self.source.has_told_flight())


def question(asked: Sequence[tuple[EvidenceSource, Path]], *, limit_s: float) -> list[RankEvidence]:
    """Ask all at once, wait until the answers are there (or for the limit), return the evidence of each."""
    interviews = [_Interview(source, flight) for source, flight in asked]
    start_s = monotonic()
    while (spent_s := monotonic() - start_s) < limit_s:
        may_wait = spent_s < _SILENT_SHARE * limit_s
        going_on = [
            interview.goes_on(may_wait=may_wait) for interview in interviews
        ]  # every one takes its look
        if not any(going_on):
            break
        sleep(EVIDENCE_POLL_S)
    return [interview.source.read() for interview in interviews]
