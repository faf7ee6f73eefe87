"""Recorder of the sanitizer ``race`` in a rank: track the pending calls, and check each operation against them."""

from __future__ import annotations

import math
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import msgspec

import disttest
from disttest.extras.sanitizers.order.order_findings import describe
from disttest.extras.sanitizers.order.order_recorder import sign
from disttest.extras.sanitizers.race.races import HANDED_OUT, Race, RaceKind, Races, SourceLine
from disttest.extras.sanitizers.race.windows import Policy
from disttest.extras.sanitizers.sanitizer import SanitizerRecorder
from disttest.observe import Call, Site, Wait, WaitKind, as_text, held_calls, watching_operations
from disttest.observe.sites import call_site

_MOST_RACES = 100
_MOST_JOINED = 64
"""Calls that one stream has waited for and others may not have; the oldest are dropped."""
_OURS = f"{Path(disttest.__file__).parent}/"
_DISPATCHING = (
    "/torch/_compile.py",
    "/torch/_dynamo/eval_frame.py",
    "/torch/_ops.py",
    "/torch/utils/_python_dispatch.py",
)
_FREES = "resize_"
_WORDS = {"__reduce_ex__": "pickle"}


class RaceRecorder(SanitizerRecorder):
    """Recorder of accesses between the issue of a call and the wait for it.

    Args:
        rank: number of this rank in its world.
        policy: decides when a call is complete.
    """

    def __init__(self, rank: int, policy: Policy) -> None:
        from disttest.extras.sanitizers.race import (  # imported late: they need torch, which a rank may lack
            accesses,
            windows,
        )

        self._rank = rank
        self._policy = policy
        self._accesses, self._make = accesses, windows
        # Operations are observed only while calls are pending: an operation costs 0.8 µs, and 5.4 µs when observed.
        self._watching: ModuleType = watching_operations()
        self._streams: Any = None
        """CUDA streams, from the first call that a backend queues on one."""
        self.begin()

    def begin(self) -> None:
        """Begin a test."""
        self._windows: dict[int, Any] = {}
        self._races: dict[tuple[Any, ...], Race] = {}
        self._by_window: dict[int, list[tuple[Any, ...]]] = {}
        self._beyond = 0
        self._doubtful = False
        self._has_issued = False
        self._awaited: dict[int, int] = {}
        """Thread -> number of the call that it waits for."""
        self._settle()

    def report(self) -> Races:
        """Return the races since the test began."""
        return Races(races=tuple(self._races.values()), beyond=self._beyond, doubtful=self._doubtful)

    def on_issue(self, call: Call) -> None:
        """Check the inputs and outputs of a call like those of any operation."""
        self._has_issued = True
        self._check_windows(call)
        if call.group.queues and (call.is_functional or not call.by_cpp):
            self._begin_issue(call)

    def _check_windows(self, call: Call) -> None:
        if not self._windows:
            return
        # The call itself reads and writes tensors that an earlier call may still use.
        in_place = self._make.is_in_place(call, self._rank)
        for tensor in call.inputs:
            self._touch(tensor, in_place, by=call)
        for tensor in call.outputs:
            self._touch(tensor, True, by=call)

    def on_return(self, call: Call, work: Any) -> None:
        """Track the call as pending."""
        is_on_stream = self._streams is not None and self._streams.order.end_issue(call.n)
        if not (is_on_stream or self._is_pending(call, work)):
            return
        if window := self._make.open_window(call, self._rank):
            # Calls that nothing can wait for any more end here. Otherwise each of them would keep operations
            # observed.
            self._drop()
            # A call that is not asynchronous made the current stream wait before it returned. Other streams
            # have not waited.
            window.is_on_stream, window.is_joined = is_on_stream, is_on_stream and not call.is_async
            self._windows[call.n] = window
            self._settle()

    def on_wait(self, wait: Wait) -> None:
        """Watch a backward pass, and check inputs whose memory was handed out."""
        if wait.kind is WaitKind.BACKWARD and self._has_issued:
            # Early: the engine gives the nodes of the graph the modes of this moment.
            self._watching.prepare()
        if self._streams is not None:
            self._streams.order.begin_wait(wait.n)
        if wait.call is not None:
            self._awaited[threading.get_ident()] = wait.call.n
        window = self._windows.get(wait.call.n) if wait.call else None
        # At the beginning of the wait: once it is over, the program may write the input.
        if window is not None and window.sums:
            for site in window.changed():
                self._note(window, RaceKind.INPUT_WRITTEN, HANDED_OUT, site, in_place=False)

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Mark the calls that the wait completes."""
        self._doubtful |= error is not None
        self._awaited.pop(threading.get_ident(), None)
        # One wait can complete several calls: earlier ones of a queue in order, or those of a backward pass.
        over = [window for window in list(self._windows.values()) if self._policy.is_over(window.call, wait)]
        line = _line(wait.site)
        by_stream = self._streams is not None and self._is_of_stream(wait)
        for window in over:
            window.is_joined = window.is_on_stream and by_stream
            if not window.is_joined:
                self._windows.pop(window.call.n, None)
            # Races are noted before their wait is known. Now their findings get its line.
            for key in self._by_window.pop(window.call.n, ()):
                self._races[key] = msgspec.structs.replace(self._races[key], waited=line)
        self._drop()
        self._settle()

    def on_error(self, call: Call, error: BaseException) -> None:
        """Note that a call was refused."""
        del call, error
        self._doubtful = True

    def on_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check the tensors of an operation."""
        # The reducer of DDP works on its buckets while their calls are pending, and knows when they are over.
        if not self._windows or (self._is_of_cpp and _is_engine()):
            return
        name = _WORDS.get(func.__name__, func.__name__.partition(".")[0])
        # A resize has no access to bytes, but moves the memory that a call uses.
        if name == _FREES:
            self._resize(args)
            return
        for tensor, writes in self._accesses.accesses(func, args, kwargs):
            self._touch(tensor, writes, name)
            if name in self._accesses.HANDS_OUT:
                self._hand_out(tensor)

    def _is_pending(self, call: Call, work: Any) -> bool:
        if not (call.is_async or self._watching.has_threads()):
            return False  # torch waits for it immediately
        if call.by_cpp:
            return call.is_functional or call.in_backward
        return work is not None

    def _touch(self, tensor: Any, writes: bool, what: str = "", by: Call | None = None) -> None:
        try:
            # Address first: almost all tensors of an operation are elsewhere, and a view of a tensor takes
            # longer to make.
            start = tensor.data_ptr()
        except (RuntimeError, NotImplementedError):
            return
        if not is_between(self._edges, start):
            return
        view = self._make.view_of(tensor)
        if view is None:
            return
        # Over gloo the wait itself may copy the result into place, which is part of the call.
        awaited = self._awaited.get(threading.get_ident())
        for window in list(self._windows.values()):
            if window.call.n == awaited:
                continue
            region = window.touched(view, writes=writes)
            if (
                region is not None
                and not self._is_in_order(window, tensor)
                and not self._is_meant(window, by)
            ):
                kind = _kind(region.is_written, writes)
                in_place = region.is_written and not window.signature.outputs
                who, site = (describe(sign(by)), by.site) if by else (what, call_site())
                self._note(window, kind, who, site, in_place=in_place)

    def _begin_issue(self, call: Call) -> None:
        tensors = call.inputs or call.outputs
        if not tensors or tensors[0].device.type != "cuda":
            return
        if self._streams is None:
            from disttest.extras.sanitizers.race.cuda_streams import CudaStreams

            self._streams = CudaStreams(self._note_over)
        self._streams.begin_issue(tensors[0].device)

    def _is_of_stream(self, wait: Wait) -> bool:
        """Whether only a stream has waited, so that this thread does not know whether the calls are complete."""
        return bool(self._streams.order.end_wait(wait.n)) and not self._streams.blocks(wait)

    def _note_over(self, calls: set[int]) -> None:
        """Drop calls that are known to be complete."""
        for call in calls:
            self._windows.pop(call, None)
        if calls:
            self._settle()

    def _is_in_order(self, window: Any, tensor: Any) -> bool:
        """Whether the GPU runs this thread's work after the call."""
        on_stream = window.is_on_stream and tensor.device.type == "cuda"
        return on_stream and bool(self._streams.is_behind(tensor.device, window.call.n))

    def _resize(self, args: tuple[Any, ...]) -> None:
        """Check a resize: always for a storage, for a tensor if it needs more memory."""
        target = args[0]
        is_tensor = hasattr(target, "untyped_storage")
        storage = target.untyped_storage() if is_tensor else target
        start, size = storage.data_ptr(), storage.nbytes()
        wanted = _bytes_of(target, args[1]) if is_tensor else args[1]
        if not size or (wanted <= size if is_tensor else wanted == size):
            return
        for window in list(self._windows.values()):
            if not any(region.storage[0] == start for region in window.regions):
                continue
            # A stream has waited for the call, so the program may free the memory, as FSDP does.
            if window.is_joined:
                self._windows.pop(window.call.n, None)
            elif not self._is_meant(window, None):
                self._note(window, RaceKind.STORAGE_FREED, _FREES, call_site(), in_place=False)

    def _hand_out(self, tensor: Any) -> None:
        view = self._make.view_of(tensor) if tensor.device.type == "cpu" else None
        for window in list(self._windows.values()) if view else ():
            window.remember(view, call_site())

    def _is_meant(self, window: Any, by: Call | None) -> bool:
        """Whether an access is no race: its author knows that the call is over, or no wait for the call is possible."""
        call = window.call
        if call.by_cpp and not window.is_joined:
            return _is_engine() if by is None else by.by_cpp
        if by is not None and self._policy.in_order(call, by):
            return True
        if window.is_joined or call.n in held_calls():
            return False
        # Nothing holds a handle, so no wait can come. The order sanitizer reports such calls.
        self._windows.pop(call.n, None)
        return True

    def _note(self, window: Any, kind: RaceKind, what: str, site: Site, *, in_place: bool) -> None:
        call = window.call
        key = (call.site, call.op, kind, site)
        if key in self._races:
            return
        if len(self._races) >= _MOST_RACES:
            self._beyond += 1
            return
        self._races[key] = Race(
            call=window.signature,
            seq=call.seq,
            kind=kind,
            what=what,
            at=_line(site),
            on_other_stream=window.is_joined,
            in_other_thread=_in_other_thread(call),
            is_in_place=in_place,
        )
        self._by_window.setdefault(call.n, []).append(key)

    def _drop(self) -> None:
        """Drop calls that can no longer be waited for, and those whose memory is gone."""
        held = held_calls() if self._windows else frozenset()
        for n, window in list(self._windows.items()):
            gone = all(region.alive.expired() for region in window.regions)
            if gone or not (window.is_joined or window.call.by_cpp or n in held):
                self._windows.pop(n, None)
        joined = [n for n, window in list(self._windows.items()) if window.is_joined]
        # Only a wait of a thread ends them for all streams, and a training loop may never have one.
        for n in joined[:-_MOST_JOINED]:
            self._windows.pop(n, None)

    def _settle(self) -> None:
        """Observe operations only while calls are pending, and update the ranges to look for."""
        windows = list(self._windows.values())  # a copy: the thread of a GPU's backward pass may change it
        self._edges = edges_of(region.storage for window in windows for region in window.regions)
        self._is_of_cpp = all(window.call.by_cpp for window in windows)
        if self._streams is not None:
            self._streams.order.keep(self._windows)
        # Each time, since ask() also observes the thread that runs now.
        if windows:
            self._watching.ask(self)
        else:
            self._watching.leave(self)


def _kind(is_written: bool, writes: bool) -> RaceKind:
    if not is_written:
        return RaceKind.INPUT_WRITTEN
    return RaceKind.OUTPUT_WRITTEN if writes else RaceKind.OUTPUT_READ


def _line(site: Site) -> SourceLine:
    return SourceLine(file=as_text(site.file), line=site.line)


def _in_other_thread(call: Call) -> bool:
    return call.thread != threading.get_ident()


def _bytes_of(tensor: Any, sizes: Any) -> int:
    return int((math.prod(sizes) + tensor.storage_offset()) * tensor.element_size())


def _is_engine() -> bool:
    """Whether C++ code in a backward pass makes the access, and not a hook of the user."""
    # inspect.currentframe has no depth, and inspect.stack reads source files (Python 3.11 to 3.13).
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and _hands_on(frame):
        frame = frame.f_back
    return frame is None or frame.f_code.co_name == "_engine_run_backward"


def _hands_on(frame: FrameType) -> bool:
    """Whether a frame only passes operations on: one of disttest, of torch, or a mode of the user."""
    code = frame.f_code
    ours = code.co_filename.startswith(_OURS)
    return ours or code.co_name == "__torch_dispatch__" or code.co_filename.endswith(_DISPATCHING)


def edges_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return the sorted edges of the union of some ranges.

    Args:
        ranges: pairs of the first address and the one behind the last.
    """
    edges: list[int] = []
    for start, end in sorted(ranges):
        if edges and start <= edges[-1]:
            edges[-1] = max(edges[-1], end)
        else:
            edges += (start, end)
    return edges


def is_between(edges: Sequence[int], address: int) -> bool:
    """Whether an address is in a range."""
    return bisect_right(edges, address) % 2 == 1
