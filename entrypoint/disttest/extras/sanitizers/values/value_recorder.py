"""Recorder of the sanitizer ``values`` in a rank: note contents of tensors (0.3 ms a megabyte), keep no tensor."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from disttest.extras.sanitizers.sanitizer import SanitizerRecorder
from disttest.extras.sanitizers.values.models import Models
from disttest.extras.sanitizers.values.replicas import Evidence
from disttest.extras.sanitizers.values.trace import Role, TensorPlace, Trace
from disttest.extras.sanitizers.values.trace_notes import Notes, default_rank, infers_shapes, site_fields
from disttest.model import TO_ROOT, rank_names
from disttest.observe import Call, Wait, WaitKind, as_text, spec_of

_MOST_PENDING = 256
"""Calls that were not waited for; their tensors are kept for the wait."""
_MOST_ROOTS = 8
"""Roots of one backward pass."""
_SENDING = frozenset({"send", "barrier", "monitored_barrier"})


class Calls:
    """Record of the tensors of a test's calls.

    The output of a call that C++ code issues and waits for is read when the backward pass around it is over. Outside of
    a backward pass it is unknown when such a call is done, and whether its output was written since.
    """

    def __init__(self, notes: Notes, rank: int) -> None:
        self._notes = notes
        self._rank = rank
        self._pending: dict[int, Call] = {}
        self._backward: Counter[int] = Counter()
        """Thread -> running backward passes; they nest where layers are checkpointed."""
        self._before: dict[tuple[object, ...], int] = {}
        """Calls of each kind before the test, in a world that has run others."""

    def issue(self, call: Call) -> None:
        """Note the input of a call that is about to be handed to its backend."""
        self._note(Role.INPUT, call, call.read_in(self._rank))
        if call.op in _SENDING or (call.op in TO_ROOT and call.root != self._rank):
            return
        self._pending[call.n] = call
        if len(self._pending) > _MOST_PENDING:
            del self._pending[next(iter(self._pending))]

    def begin(self, wait: Wait) -> None:
        """Note the beginning of a wait."""
        if wait.kind is WaitKind.BACKWARD:
            self._backward[wait.thread] += 1
            roots = () if infers_shapes() else wait.roots[:_MOST_ROOTS]
            for index, root in enumerate(roots):
                if isinstance(root, torch.Tensor):  # not an edge of the graph
                    self._note_root(index, root, wait)

    def done(self, wait: Wait, *, well: bool) -> None:
        """Note the results of a wait that is over."""
        if wait.kind is WaitKind.BACKWARD:
            self._backward[wait.thread] -= 1
        if not well:
            if wait.call is not None:
                self.drop(wait.call)
        elif wait.call is not None:
            self._finish(wait.call.n)
        elif wait.kind is WaitKind.BACKWARD and not self._backward[wait.thread]:
            waited = [n for n, call in self._pending.items() if _ends_with_backward(call, wait)]
            for n in waited:
                self._finish(n)

    def _note_root(self, index: int, tensor: torch.Tensor, wait: Wait) -> None:
        place = TensorPlace(
            role=Role.ROOT,
            name="backward",
            index=index,
            **spec_of(tensor)._asdict(),
            **site_fields(wait.site),
        )
        self._notes.add(place, tensor)

    def drop(self, call: Call) -> None:
        """Drop a call that failed."""
        self._pending.pop(call.n, None)

    def _finish(self, n: int) -> None:
        call = self._pending.pop(n, None)
        if call is not None:
            self._note(Role.OUTPUT, call, call.outputs or call.inputs)

    def _note(self, role: Role, call: Call, tensors: tuple[torch.Tensor, ...]) -> None:
        kind = (call.group.name, *((call.op, call.peer, call.tag) if call.is_p2p else ()))
        number = call.seq - self._before.setdefault(kind, call.seq - 1)
        for index, tensor in enumerate(tensors):
            self._notes.add(_place(role, call, index, tensor), tensor, number)


def _ends_with_backward(call: Call, wait: Wait) -> bool:
    return call.by_cpp and call.in_backward and call.thread == wait.thread


def _place(role: Role, call: Call, index: int, tensor: Any) -> TensorPlace:
    group = call.group
    return TensorPlace(
        role=role,
        name=call.op,
        kind=call.reduce_op,
        group=as_text(group.description) or rank_names(group.ranks),
        group_id=as_text(group.name),
        ranks=group.ranks,
        peer=call.peer,
        root=call.root,
        index=index,
        **spec_of(tensor)._asdict(),
        **site_fields(call.site),
    )


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
