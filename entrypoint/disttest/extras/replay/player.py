"""Player inside a replayed rank: return the recorded results call by call, and stop if the rank deviates.

Nothing is sent. Each call has to match the recorded one at its position: the same operation, group, ranks, dtypes and
shapes. The values that the rank hands over are compared too; if they differ, the replay continues and reports it.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from disttest.extras.replay.format import Raised, RecordedSignature, Recording, describe
from disttest.extras.replay.signatures import (
    digest_of_call,
    digest_of_store,
    of_call,
    of_group,
    of_store,
    written_by,
)
from disttest.observe import Call, Site, StoreCall, Tool, Wait, WaitKind
from disttest.observe.memory import fill
from disttest.observe.operations import OPERATIONS

# Work.boxed and its like are in the C++ module only (torch 2.9 to 2.15).
_c10d: Any = torch._C._distributed_c10d  # noqa: SLF001
_FULL_NAMES = {row.name: row.op for row in OPERATIONS}
_OF_CALLS = frozenset({WaitKind.WORK, WaitKind.FUTURE, WaitKind.TENSOR, WaitKind.OPERATION})


# Clocks, files and threads are not recorded: if they mattered, the calls or the values differ, and the replay stops.
class ReplayStopped(BaseException):
    """The replay cannot continue. A BaseException, so that the test does not handle it."""


class RecordingEnded(ReplayStopped):
    """The recorded rank got no further: it hung there, or was ended."""


class Diverged(ReplayStopped):
    """The rank did something other than recorded."""


class Player(Tool):
    """Player of one test; made in the thread that runs it.

    Args:
        recording: recording of the rank that this process replays.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._thread = threading.get_ident()
        self._next = 0
        self._open: dict[int, int] = {}
        """Calls that never finished or raised: number of the observing layer -> number in the recording."""
        self.stopped: ReplayStopped | None = None
        self.other_values = ""
        """Place where the rank first handed over other values than recorded."""

    @property
    def calls(self) -> int:
        """Number of calls that the rank has made."""
        return self._next

    def close(self) -> None:
        """Finish the replay at the end of the test.

        Raises:
            Diverged: the recording has more calls.
        """
        recording = self._recording
        if self.stopped is None and self._next < len(recording.calls):
            raise self._stop(
                Diverged(
                    f"the rank ended after {self._next} calls, but {len(recording.calls)} were recorded; "
                    f"the next one is {recording.place(self._next)}"
                )
            )

    # --- calls of a process group

    def take(self, call: Call, run: Callable[[], Any]) -> Any:
        """Return the recorded result of a call, without handing the call to its backend."""
        __tracebackhide__ = True
        del run
        number = self._match(
            of_call(call), call.site, call.thread, digest_of_call(call, self._recording.head.rank)
        )
        recording = self._recording
        # No peer is there, so the future is complete before the test gets it, or stays open where the rank
        # hung.
        future: Any = torch.futures.Future()
        error = recording.errors.get(number)
        if number in recording.filled:
            tensors = written_by(call)
            try:
                fill(tensors, recording.filled[number])
            # Dtypes and shapes matched, so the number of bytes is wrong in a damaged file only.
            except ValueError as wrong:
                raise self._stop(Diverged(f"call {number + 1}, {recording.place(number)}: {wrong}")) from None
            future.set_result(list(tensors))
        elif call.by_cpp or call.op == "monitored_barrier":  # no wait in Python would raise it
            raise _exception(error) if error else self._ended(number)
        else:
            self._open[call.n] = number
        return _returned(call, future)

    def on_wait(self, wait: Wait) -> None:
        """Raise the recorded error, or stop the replay if the recorded rank waited here forever."""
        __tracebackhide__ = True
        if wait.kind is WaitKind.GROUP:
            self._make_group(wait)
        elif wait.call is not None and (number := self._open.get(wait.call.n)) is not None:
            error = self._recording.errors.get(number)
            raise _exception(error) if error else self._ended(number)
        # A wait whose call is unknown, such as for a future that the test combined. The earliest open call is
        # named.
        elif wait.call is None and wait.kind in _OF_CALLS and self._open:
            raise self._ended(min(self._open.values()))

    def _make_group(self, wait: Wait) -> None:
        __tracebackhide__ = True
        # Groups are destroyed at tear-down, also after a stop. An error there would hide the reason of the
        # stop.
        if self.stopped is not None:
            return
        number = self._match(of_group(wait), wait.site, wait.thread, 0)
        if number not in self._recording.answers:
            error = self._recording.errors.get(number)
            raise _exception(error) if error else self._ended(number)

    # --- calls of a store

    def take_store(self, call: StoreCall, run: Callable[[], Any]) -> Any:
        """Return the recorded answer of a store."""
        __tracebackhide__ = True
        del run
        number = self._match(of_store(call), call.site, call.thread, digest_of_store(call))
        recording = self._recording
        if number in recording.answers:
            return recording.answers[number]
        error = recording.errors.get(number)
        raise _exception(error) if error else self._ended(number)

    # --- all of them

    def _match(self, called: RecordedSignature, site: Site, thread: int, digest: int) -> int:
        """Return the number of the matching call in the recording."""
        __tracebackhide__ = True
        if self.stopped is not None:
            raise self.stopped
        number, recording = self._next, self._recording
        here = f"{describe(called)} at {site}"
        # The order of calls of several threads is not recorded, so none of them could be matched.
        if thread != self._thread:
            raise self._stop(Diverged(f"at call {number + 1} another thread than the test's called {here}"))
        if number >= len(recording.calls):
            raise self._stop(self._beyond(number, here))
        if recording.place(number).signature != called:
            raise self._stop(
                Diverged(f"call {number + 1} is {here}, but {recording.place(number)} was recorded")
            )
        if recording.calls[number].digest != digest and not self.other_values:
            self.other_values = f"call {number + 1}, {here}"
        self._next += 1
        return number

    def _beyond(self, number: int, here: str) -> ReplayStopped:
        last = f" (the last was {self._recording.place(number - 1)})" if number else ""
        if self._recording.is_whole:
            return Diverged(f"call {number + 1} is {here}, but only {number} calls were recorded{last}")
        return RecordingEnded(f"the rank was ended before its call {number + 1}, {here}{last}")

    def _ended(self, number: int) -> ReplayStopped:
        return self._stop(
            RecordingEnded(f"the rank hung in its call {number + 1}, {self._recording.place(number)}")
        )

    def _stop(self, stopped: ReplayStopped) -> ReplayStopped:
        # The first reason counts: after it the rank is no longer in the recorded state.
        self.stopped = self.stopped or stopped
        return self.stopped


def _returned(call: Call, future: Any) -> Any:
    """Return the result of the ``c10d`` operation: its tensors, which no caller reads, and the handle."""
    # No public function makes a Work from a future, or returns the schema of an operation (torch 2.9 to 2.15).
    work = _c10d._create_work_from_future(future).boxed()  # noqa: SLF001
    # The dispatcher checks the results against the schema, such as `(Tensor[],
    # __torch__.torch.classes.c10d.Work)`.
    types = [str(each.type) for each in getattr(torch.ops.c10d, _FULL_NAMES[call.op]).default._schema.returns]  # noqa: SLF001
    if not types:
        return None
    values = [work if "Work" in each else _shaped(each, list(written_by(call))) for each in types]
    return values[0] if len(values) == 1 else tuple(values)


def _shaped(type_: str, tensors: list[torch.Tensor]) -> Any:
    match type_:
        case "Tensor":
            return tensors[0]
        case "List[Tensor]":
            return tensors
        case _:
            return [tensors]


def _exception(raised: Raised) -> BaseException:
    """Rebuild the recorded exception with its type, if that is one of Python's or torch's."""
    kind = getattr(builtins, raised.kind, None) or getattr(dist, raised.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    try:
        return kind(raised.message)
    except TypeError:  # UnicodeDecodeError and others take more arguments
        return RuntimeError(raised.message)
