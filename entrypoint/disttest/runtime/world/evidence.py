"""Evidence of a rank that is about to be ended: the Python stacks of all threads, and its collectives.

faulthandler answers a real-time signal from C code, without the GIL, so it works while the rank waits in a
collective. It writes to a file of its own, so that the dump never mixes with the rank's output.
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
from disttest.model import Collective
from disttest.outgoing import outgoing
from disttest.results.hang_findings import main_thread
from disttest.results.narrative import STACKS_HEADING as STACKS_HEADING
from disttest.runtime.messages.protocol import Raised
from disttest.runtime.rank.flight import ask, asserting_frame, read_answer, read_in_flight

_STOPPED = "stopped (SIGSTOP, or a debugger)"
_DEAF = "without its handler of the signal that asks for stacks (the test has reset it)"
_STATES = {
    "T": _STOPPED,
    "t": _STOPPED,
    "D": "in an uninterruptible sleep in the kernel (a device or a file system)",
}

# Consecutive looks without growth after which an answer that has no recognizable end counts as complete.
_SETTLED_LOOKS = 10
# Share of the time limit after which a rank without any stacks is asked for its collectives anyway.
_SILENT_SHARE = 0.5
_LINE = 1024
# The last line of faulthandler's dump: `  File "test_x.py", line 3 in <module>`, or `  ...` after 100 frames.
_BOTTOM = re.compile(rb"( in (<module>|_run_module_as_main)|\n  \.\.\.)\n$")
_MORE = "\n  ..."
"""End of stacks of more than 100 frames."""
_MOST_KEPT = 64 * 1024


class RankEvidence(NamedTuple):
    """State of one rank at the moment when it is ended."""

    stacks: str = ""
    collectives: tuple[Collective, ...] = ()
    in_flight: Raised | None = None
    process_state: str = ""
    """The kernel's reason why the process could not write stacks."""


class Process(Protocol):
    """A living process that accepts signals."""

    @property
    def pid(self) -> int:
        """Process id."""

    def signal(self, signum: int) -> None:
        """Send a signal; do nothing if the process has ended."""


class EvidenceSource:
    """A rank, or a descendant of one, that can report its stacks and its collectives."""

    def __init__(self, child: Process, path: Path, questions: Path | None = None) -> None:
        self._child = child
        self._path = path
        self._questions = questions
        self._seen = 0
        self.is_deaf = False
        """Whether the process has lost its handler for the stacks signal, whose default action would end it."""
        self._flight: Path | None = None

    def ask_stacks(self) -> bool:
        """Request the stacks, unless the process has no signal handler yet, or has lost it.

        Returns:
            Whether the request was sent.
        """
        answers = self._answers()
        if answers is None:
            return False
        # Answers to earlier questions are in the same file.
        self._seen = answers.stat().st_size
        # The default action of a real-time signal is to kill. `SigCgt` in /proc/PID/status shows whether a handler is
        # set; without one the rank would die and be blamed for it.
        self.is_deaf = not catches(self._child.pid, STACKS_SIGNAL)
        if not self.is_deaf:
            self._child.signal(STACKS_SIGNAL)
        return not self.is_deaf

    def ask_flight(self, flight: Path) -> None:
        """Request the collectives.

        Args:
            flight: the file that the rank writes them to.
        """
        if self._questions is not None and ask(self._questions, flight):
            self._flight = flight

    def state(self) -> str:
        """Describe why the process cannot answer at all; empty if it can."""
        return _STATES.get(process_state(self._child.pid), _DEAF if self.is_deaf else "")

    def answer_size(self) -> int:
        """Bytes received since the request."""
        answers = self._answers()
        return answers.stat().st_size - self._seen if answers else 0

    def has_all_stacks(self) -> bool:
        """Whether the answer ends with the bottom of the main thread, which faulthandler writes last."""
        answers = self._answers()
        if answers is None:
            return False
        with answers.open("rb") as file:
            # The end of an earlier answer in the same file is not the end of this one.
            file.seek(max(self._seen, file.seek(0, os.SEEK_END) - _LINE))
            return _BOTTOM.search(file.read()) is not None

    def has_collectives(self) -> bool:
        """Whether the collectives have arrived, or were not requested."""
        return self._flight is None or self._flight.exists()

    def read(self) -> RankEvidence:
        """Read everything that has arrived so far."""
        told = self._flight is not None and self._flight.exists()
        stacks = self.stacks()
        state = "" if stacks else self.state()
        return RankEvidence(
            stacks or (state and f"Process state: {state}"),
            read_answer(self._flight) if told and self._flight else (),
            self._in_flight(stacks),
            state,
        )

    def _in_flight(self, stacks: str) -> Raised | None:
        """Return the exception that the rank was handling when it was asked for its stacks."""
        raised = read_in_flight(self._questions) if self._questions and self._flight else None
        # The signal interrupts a waiting call, which does not restart (see Supervisor.end_living). An assertion that fails
        # because of this is no failure of the test: the stacks, written before, do not show that its message was being built.
        late = raised is not None and raised.is_assertion and not _may_describe_assertion(stacks)
        return None if late else raised

    def stacks(self) -> str:
        """Stacks received since the request, most recent call first, in faulthandler's format."""
        answers = self._answers()
        if answers is None:
            return ""
        with answers.open("rb") as file:
            file.seek(self._seen)
            return outgoing.data(file.read(_MOST_KEPT)).decode("utf-8", "replace").strip()

    def _answers(self) -> Path | None:
        """Locate the stacks file; through ``/proc`` if a test has deleted the temporary directory."""
        if self._path.exists():
            return self._path
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{self._child.pid}/fd").iterdir():
                # The kernel marks the target of a descriptor whose file has been deleted.
                if str(entry.readlink()).endswith(f"/{self._path.name} (deleted)"):
                    return entry
        return None


def _may_describe_assertion(stacks: str) -> bool:
    """Whether the main thread may build the message of a failed assertion; True if not all of its frames are known."""
    frames = [(frame.file, frame.function) for frame in main_thread(stacks)]
    return not frames or stacks.endswith(_MORE) or asserting_frame(frames) is not None


def collect_stacks(sources: Sequence[EvidenceSource], *, limit_s: float) -> list[str]:
    """Collect the stacks of all sources while the ranks continue.

    Args:
        sources: the sources, which are asked at the same time.
        limit_s: limit in seconds for the next source to answer. Ranks share the processors, so hundreds of them need
            more time together than any number of seconds that suits two.

    Returns:
        The stacks of each source; empty for a source that is not complete when the limit ends.
    """
    for source in sources:
        source.ask_stacks()
    waiting = [source for source in sources if not source.has_all_stacks()]
    deadline_s = monotonic() + limit_s
    while waiting and monotonic() < deadline_s:
        sleep(EVIDENCE_POLL_S)
        left = [source for source in waiting if not source.has_all_stacks()]
        # 256 ranks on two processors could not all write their stacks in the 0.3 s that suit two ranks.
        if len(left) < len(waiting):
            deadline_s = monotonic() + limit_s
        waiting = left
    return ["" if source in waiting else source.read().stacks for source in sources]


class StacksAnswer:
    """The stacks of one source while they arrive."""

    def __init__(self, source: EvidenceSource) -> None:
        self._source = source
        self._same_looks = 0
        self.size = 0

    def is_whole(self) -> bool:
        """Look once: complete if the end is recognizable, or if the answer has stopped growing."""
        size = self._source.answer_size()
        self._same_looks = self._same_looks + 1 if size == self.size else 0
        self.size = size
        return size > 0 and (self._same_looks >= _SETTLED_LOOKS or self._source.has_all_stacks())


class _EvidenceRequest:
    """Requests the stacks first, then the collectives; never both at the same time.

    faulthandler walks the frames of all threads without stopping them. A thread that runs Python meanwhile, as the one
    that reports the collectives does, can crash the process: https://github.com/python/cpython/issues/116008
    """

    def __init__(self, source: EvidenceSource, flight: Path) -> None:
        self.source = source
        self._flight = flight
        self._asked_flight = False
        self._answer = StacksAnswer(source)
        source.ask_stacks()

    def goes_on(self, *, may_wait: bool) -> bool:
        """Look once and send the next request if it is due; return whether an answer is still outstanding."""
        # After half of the limit the collectives are worth more than the rest of the stacks.
        if not self._asked_flight and (self.source.is_deaf or self._answer.is_whole() or not may_wait):
            self._asked_flight = True
            self.source.ask_flight(self._flight)
        # A stopped process will not answer. One in an uninterruptible sleep may wake up within the limit.
        if not self._answer.size and not self.source.is_deaf:
            return self.source.state() != _STOPPED
        return not (self._asked_flight and self.source.has_collectives())


def collect_evidence(asked: Sequence[tuple[EvidenceSource, Path]], *, limit_s: float) -> list[RankEvidence]:
    """Ask all sources at the same time, wait for the answers or the limit, and return the evidence of each."""
    interviews = [_EvidenceRequest(source, flight) for source, flight in asked]
    start_s = monotonic()
    while (spent_s := monotonic() - start_s) < limit_s:
        may_wait = spent_s < _SILENT_SHARE * limit_s
        # A list, not a generator: every interview must take its look in each round.
        going_on = [interview.goes_on(may_wait=may_wait) for interview in interviews]
        if not any(going_on):
            break
        sleep(EVIDENCE_POLL_S)
    return [interview.source.read() for interview in interviews]
