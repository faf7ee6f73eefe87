"""The part of the sanitizer that is in a rank: it notes what tensors hold, in 0.3 ms for a megabyte, and keeps none."""

from __future__ import annotations

from disttest.observe import Call, Wait
from disttest.sanitizers.sanitizer import SanitizerRecorder
from disttest.sanitizers.values.calls import Calls
from disttest.sanitizers.values.models import Models
from disttest.sanitizers.values.replicas import Evidence
from disttest.sanitizers.values.trace import Trace
from disttest.sanitizers.values.trace_notes import Notes, default_rank


class ValuesRecorder(SanitizerRecorder):
    """Notes the tensors of calls, modules and optimizers of one test after another.

    Args:
        rank: of this process in its world.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._models = Models()
        self.begin()
        self._models.watch()

    def begin(self) -> None:
        """A test begins."""
        self._notes, self._evidence = Notes(), Evidence()
        self._calls = Calls(self._notes, self._rank)
        self._models.begin(self._notes, self._evidence)

    def report(self) -> Trace:
        """What was seen since the test began."""
        return self._notes.trace()

    def on_issue(self, call: Call) -> None:
        """Note what a call is given."""
        self._notes.doubtful |= default_rank() not in (self._rank, -1)
        self._calls.issue(call)
        self._evidence.issue(call)

    def on_error(self, call: Call, error: BaseException) -> None:
        """Note that one was refused."""
        del error
        self._calls.drop(call)
        self._notes.doubtful = True

    def on_wait(self, wait: Wait) -> None:
        """Note that a backward pass begins."""
        self._calls.begin(wait)

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Note what came of a call."""
        self._calls.done(wait, well=error is None)
        self._notes.doubtful |= error is not None and wait.call is not None
