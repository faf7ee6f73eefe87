"""Recorder inside a rank: record each call, and its result before the test can see it.

A collective finishes in a thread of its backend. A callback of its future records the result there, before anything
that the test could chain to it. Waits in Python are held until that is done. C++ code (DDP's reducer) waits for the
future, which wakes it before callbacks run; it gets another handle, which is done after the callback. Messages over
gloo have no future, so their results are recorded when the rank has waited for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from disttest.extras.replay.format import (
    Called,
    CallSite,
    Completed,
    Filled,
    Head,
    Raised,
    RecordedSignature,
    StoreAnswered,
    Unfit,
    Writer,
)
from disttest.extras.replay.signatures import (
    digest_of_call,
    digest_of_store,
    of_call,
    of_group,
    of_store,
    written_by,
)
from disttest.observe import ANY_SOURCE, Call, Group, StoreCall, Tool, Wait, WaitKind, as_text
from disttest.observe.memory import bytes_of, can_be_kept

_dist: Any = dist
# Work.boxed and its like are in the C++ module only (torch 2.9 to 2.15).
_c10d: Any = torch._C._distributed_c10d  # noqa: SLF001
BACKENDS = frozenset({"gloo", "undefined", "cpu:gloo"})
"""Backends whose results are complete when their futures are; ``undefined`` lets torch choose, gloo on the CPU."""
_Key = tuple[RecordedSignature, str, int]


class _Pending:
    """A call whose result is not recorded yet."""

    def __init__(self, number: int, call: Call, *, has_future: bool) -> None:
        self.number = number
        self.call = call
        self.has_future = has_future
        self.is_kept = threading.Event()


# Results of calls, not effects: clocks, files and threads would have to be recorded one by one, and each gap would
# replay another run.
# docs/decisions/0025-replay-holds-results.md
class CallRecorder(Tool):
    """Recorder of one test; made when the test begins, in the thread that runs it.

    Args:
        path: path of the recording.
        head: first record of the file.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path, head: Head) -> None:
        self._writer = Writer(path)
        self._writer.write(head)
        self._rank = head.rank
        self._thread = threading.get_ident()
        self._places: dict[_Key, int] = {}
        self._calls = 0
        self._pending: dict[int, _Pending] = {}
        """Unfinished calls by the number that the observing layer gives them."""
        self._groups: dict[int, int] = {}
        """Groups that are being made or destroyed: number of the wait -> number of the call."""
        if _dist.get_debug_level() == _dist.DebugLevel.DETAIL:
            self.note_unfit(
                "TORCH_DISTRIBUTED_DEBUG=DETAIL wraps the backend of each group, which hides its calls"
            )

    def note_unfit(self, reason: str) -> None:
        """Record that the test cannot be replayed, and why."""
        self._writer.write(Unfit(reason))

    def close(self) -> None:
        """Finish the recording at the end of the test."""
        # A message without a future gets its result at its wait. Without a wait nothing shows when the tensor
        # was complete.
        for each in list(self._pending.values()):
            if not each.has_future and written_by(each.call):
                self.note_unfit(
                    f"the {each.call.op} at {each.call.site} was never waited for, so its result is unknown"
                )
        self._writer.write(Completed())
        self._writer.close()

    # --- calls of a process group

    def take(self, call: Call, run: Callable[[], Any]) -> Any:
        """Record a call, and arrange that its result is recorded."""
        number = self._note(of_call(call), call.site, call.thread, self._digest(call))
        if call.peer == ANY_SOURCE:
            self.note_unfit(
                f"the {call.op} at {call.site} receives from any source, and the sender is not recorded"
            )
        # Before the call: its future may be done in another thread before run() returns.
        self._pending[call.n] = pending = _Pending(number, call, has_future=True)
        result = run()
        # Operations of c10d return the handle, or tensors and then the handle.
        boxed = result[-1] if isinstance(result, tuple) and result else result
        if not isinstance(boxed, torch.ScriptObject):  # finished already, such as monitored_barrier
            self._keep(pending)
            return result
        future = _future(dist.Work.unbox(boxed))
        if future is None:
            pending.has_future = False
            return result
        # Waiting in the call itself would serialise calls that the test issues in parallel.
        if not call.by_cpp:
            future.add_done_callback(lambda done: self._keep(pending) if _succeeded(done) else None)
            return result
        # No public function makes a Work from a future (torch 2.9 to 2.15).
        chained = _c10d._create_work_from_future(  # noqa: SLF001
            future.then(lambda done: self._keep_and_pass_on(pending, done))
        ).boxed()
        return (*result[:-1], chained) if isinstance(result, tuple) else chained

    def on_error(self, call: Call, error: BaseException) -> None:
        """Record that the backend refused a call."""
        if (pending := self._pending.get(call.n)) is not None:
            self._note_error(pending, error)

    def on_wait(self, wait: Wait) -> None:
        """Record that a group is being made or destroyed."""
        if wait.kind is WaitKind.GROUP:
            self._groups[wait.n] = self._note(of_group(wait), wait.site, wait.thread, 0)

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Record the result of a call that the rank has waited for."""
        if (group := self._groups.pop(wait.n, None)) is not None:
            self._writer.write(_raised(group, error) if error else StoreAnswered(group, None))
        pending = self._pending.get(wait.call.n) if wait.call else None
        if pending is None:
            return
        if error is not None:
            self._note_error(pending, error)
        elif pending.has_future:
            # The callback may run in another thread. Without this wait the test could change the tensor
            # before it is recorded.
            pending.is_kept.wait()
        else:
            self._keep(pending)

    def on_group(self, group: Group, *, made: bool) -> None:
        """Record that the test cannot be replayed if the group has another backend."""
        if made and group.backend not in BACKENDS:
            self.note_unfit(f"it has a group with the backend {group.backend}; only gloo can be replayed")

    def _digest(self, call: Call) -> int:
        if not all(map(can_be_kept, (*call.inputs, *call.outputs))):
            self.note_unfit(
                f"the {call.op} at {call.site} uses sparse tensors, or tensors that are not on the CPU"
            )
            return 0
        return digest_of_call(call, self._rank)

    def _keep(self, pending: _Pending) -> None:
        """Record the result, once."""
        # pop decides between the callback and the wait, which may come at the same time.
        if self._pending.pop(pending.call.n, None) is None:
            return
        written = written_by(pending.call)
        # note_unfit has refused the recording already where a tensor cannot be kept.
        body = bytes_of(written) if all(map(can_be_kept, written)) else b""
        self._writer.write(Filled(pending.number, memoryview(body)))
        pending.is_kept.set()

    def _keep_and_pass_on(self, pending: _Pending, done: Any) -> Any:
        try:
            value = done.value()
        except BaseException as error:
            self._note_error(pending, error)
            raise
        self._keep(pending)
        return value

    def _note_error(self, pending: _Pending, error: BaseException) -> None:
        if self._pending.pop(pending.call.n, None) is not None:
            self._writer.write(_raised(pending.number, error))
            pending.is_kept.set()

    # --- calls of a store

    def take_store(self, call: StoreCall, run: Callable[[], Any]) -> Any:
        """Record a call of a store and its answer."""
        number = self._note(of_store(call), call.site, call.thread, digest_of_store(call))
        try:
            value = run()
        except BaseException as error:
            self._writer.write(_raised(number, error))
            raise
        self._writer.write(StoreAnswered(number, value))
        return value

    # --- all of them

    def _note(self, signature: RecordedSignature, site: Any, thread: int, digest: int) -> int:
        if thread != self._thread:
            self.note_unfit(
                f"another thread than the test's called {signature.op} at {str(site) or 'no line of Python'}; "
                "the order of threads is not recorded"
            )
        # A loop repeats a line with one signature, so each further call takes about 20 bytes of the file.
        key = signature, site.file, site.line
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._places)
            self._writer.write(CallSite(signature, as_text(site.file), site.line))
        self._writer.write(Called(place, digest))
        number, self._calls = self._calls, self._calls + 1
        return number


def _future(work: Any) -> Any:
    """Return the future of a handle; None if the backend has none for it."""
    try:
        return work.get_future()
    except RuntimeError:
        return None


def _succeeded(done: Any) -> bool:
    try:
        done.value()
    except Exception:  # noqa: BLE001  # the wait for the call reports the error
        return False
    return True


def _raised(number: int, error: BaseException) -> Raised:
    return Raised(number, type(error).__name__, as_text(str(error)))
