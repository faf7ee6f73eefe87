"""Recorder of the sanitizer ``values`` in a rank: note contents of tensors (0.3 ms a megabyte), keep no tensor."""

from __future__ import annotations

from disttest.extras.sanitizers.sanitizer import SanitizerRecorder
from disttest.extras.sanitizers.values.calls import Calls
from disttest.extras.sanitizers.values.models import Models
from disttest.extras.sanitizers.values.replicas import Evidence
from disttest.extras.sanitizers.values.trace import Trace
from disttest.extras.sanitizers.values.trace_notes import Notes, default_rank
from disttest.observe import Call, Wait


class ValuesRecorder(SanitizerRecorder):
    """Recorder of the tensors of calls, modules and optimizers of one test after another.

    Args:
        rank: number of this rank in its world.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._models = Models()
        self.begin()
        self._models.watch()

    def begin(self) -> None:
        """Begin a test."""
        self._notes, self._evidence = Notes(), Evidence()
        self._calls = Calls(self._notes, self._rank)
        self._models.begin(self._notes, self._evidence)

    def report(self) -> Trace:
        """Return the observations since the test began."""
        return self._notes.trace()

    def on_issue(self, call: Call) -> None:
        """Note the inputs of a call."""
        self._notes.doubtful |= default_rank() not in (self._rank, -1)
        self._calls.issue(call)
        self._evidence.issue(call)

    def on_error(self, call: Call, error: BaseException) -> None:
        """Note that a call was refused."""
        del error
        self._calls.drop(call)
        self._notes.doubtful = True

    def on_wait(self, wait: Wait) -> None:
        """Note that a backward pass begins."""
        self._calls.begin(wait)

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Note the results of a call."""
        self._calls.done(wait, well=error is None)
        self._notes.doubtful |= error is not None and wait.call is not None
