"""Observation by the dispatcher: kernels for the operations of ``c10d`` that record a call and redispatch it.

At the key BackendSelect they are reached by every caller (Python, C++ and compiled code) and by no operation on
tensors. ``redispatch`` releases the GIL while a backend blocks; ``call_boxed`` of a kernel does not.
"""

from __future__ import annotations

# Alternatives see less: a dispatch mode misses other threads and makes Dynamo skip frames
# (https://github.com/pytorch/pytorch/issues/164143), patched functions miss C++, and a custom process group misses DDP,
# FSDP and DTensor.
# docs/decisions/0023-observe-at-the-dispatcher.md
import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from disttest.observe import hub
from disttest.observe.groups import known
from disttest.observe.operations import (
    FUNCTIONAL,
    OPERATIONS,
    WAIT,
    WAIT_FOR_ALL,
    Operation,
    argument,
    tensors,
)
from disttest.observe.records import ANY_SOURCE, Call, Group, Wait, WaitKind
from disttest.observe.replacing import keep_from_dynamo
from disttest.observe.sites import call_site

_KEY = "BackendSelect"
# The dispatcher's key sets have no public Python interface (torch 2.9 to 2.15).
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)  # noqa: SLF001
_OF_GROUP = -1
_EQUAL_PARTS: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

Kernel = Callable[..., Any]


class Kernels:
    """The kernels, registered from construction until :meth:`remove`."""

    def __init__(self) -> None:
        # The object below torch.library.Library, which refuses to take kernels away again (torch 2.9 to 2.15):
        # https://github.com/pytorch/pytorch/blob/main/torch/library.py
        self._libraries = {
            name: torch._C._dispatch_library("IMPL", name, "", __file__, 0)  # noqa: SLF001
            for name in ("c10d", "_c10d_functional")
        }
        for operation in OPERATIONS:
            self._add("c10d", operation.op, partial(_collective, operation))
        for name in FUNCTIONAL:
            self._add("_c10d_functional", name, _functional)
        self._add("_c10d_functional", WAIT, _wait_tensor)
        self._add("_c10d_functional", WAIT_FOR_ALL, _wait_tensors)
        for library, name in _unknown():
            self._add(library, name, partial(_unseen, f"{library}::{name}"))

    def _add(self, library: str, name: str, make: Callable[[Kernel], Kernel]) -> None:
        try:
            operator = getattr(getattr(torch.ops, library), name).default
        except AttributeError:
            hub.note_missing(f"{library}::{name}")
            return
        kernel = make(operator.redispatch)
        keep_from_dynamo(kernel)
        # the kernel takes the key set as its first argument
        self._libraries[library].impl(name, _KEY, kernel, True)  # type: ignore[call-arg]

    def remove(self) -> None:
        """Remove the kernels from the dispatcher."""
        # The dispatcher drops the kernels with the last reference to their library.
        self._libraries.clear()


@functools.cache
def _unknown() -> tuple[tuple[str, str], ...]:
    """Return library and name of each operation on a group in this torch that these modules do not know."""
    known = {("c10d", row.op) for row in OPERATIONS} | {("_c10d_functional", name) for name in FUNCTIONAL}
    # The dispatcher lists its operations only here (torch 2.9 to 2.15).
    there = (name.split("::") for name in torch._C._dispatch_get_all_op_names())  # noqa: SLF001
    found = {(library, name) for library, name in there if library in ("c10d", "_c10d_functional")}
    return tuple(each for each in sorted(found - known) if _takes_a_group(*each))


def _takes_a_group(library: str, name: str) -> bool:
    """Return whether an operation is a call. Others inspect, wrap or await tensors."""
    operator = getattr(getattr(getattr(torch.ops, library), name), "default", None)
    # The schema of an operation has no public name (torch 2.9 to 2.15).
    return operator is not None and any("group" in each.name for each in operator._schema.arguments)  # noqa: SLF001


def _unseen(name: str, redispatch: Kernel) -> Kernel:
    """Return the kernel of an unknown operation: its use is a gap."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        hub.note_gap(f"{name} was called, which is newer than this disttest (torch {torch.__version__})")
        return redispatch(keys & _BELOW, *args, **kwargs)

    return kernel


def _collective(operation: Operation, redispatch: Kernel) -> Kernel:
    """Return the kernel of an operation of ``c10d``."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        # Without BackendSelect and the keys above it: the call would come back to this kernel.
        below = keys & _BELOW
        if hub.is_idle() or (call := _read(operation, args)) is None:
            return redispatch(below, *args, **kwargs)
        hub.notify("on_issue", call)
        # The records below outlive the call, and with its tensors they would keep their memory.
        hub.thread.last = light = call.without_tensors()
        device = _queue_of(call.group, call.inputs or call.outputs)
        wait = _begin_to_block(operation, light, device)
        try:
            result = _pass_on(call, redispatch, below, args, kwargs)
        except BaseException as error:
            hub.end_wait(wait, error)
            hub.notify("on_error", call, error)
            raise
        # A call that the backend refused has entered no queue.
        if device is not None and hub.queues is not None:
            hub.queues.note_issued(light, device)
        hub.end_wait(wait)
        hub.notify("on_return", call, _note_handle(light, result))
        return result

    return kernel


def _begin_to_block(operation: Operation, call: Call, device: torch.device | None) -> Wait | None:
    """Record the wait of a call that returns when it is done, such as a synchronous barrier of GPUs."""
    if operation.blocks:
        return hub.begin_wait(WaitKind.OPERATION, call, timeout_s=call.timeout_s, site=call.site)
    if device is not None and operation.inputs is None and not call.is_async:
        return hub.begin_wait(WaitKind.DEVICE, calls=(call,), timeout_s=call.timeout_s, site=call.site)
    return None


def _queue_of(group: Group, tensors: Sequence[torch.Tensor]) -> torch.device | None:
    """Return the GPU whose queue a call with these tensors enters; None if the host waits for it."""
    if not group.queues:
        return None
    if not tensors:
        return torch.accelerator.current_accelerator()
    return None if tensors[0].device.type == "cpu" else tensors[0].device


def _behind(group: Group, tensors: Sequence[torch.Tensor]) -> tuple[str, int] | None:
    """Return the last call in the queue that this call will enter."""
    device = _queue_of(group, tensors)
    return None if device is None or hub.queues is None else hub.queues.last_before(device)


def _pass_on(call: Call, redispatch: Kernel, below: Any, args: Any, kwargs: Any) -> Any:
    """Pass a call to its backend, or to the tools that take it over."""
    __tracebackhide__ = True
    if not hub.takers("take"):
        return redispatch(below, *args, **kwargs)
    return hub.run_through("take", call, partial(redispatch, below, *args, **kwargs))


def _note_handle(call: Call, result: Any) -> dist.Work | None:
    """Record the handle of a call if its caller will hold it. NCCL returns none for synchronous calls."""
    thread = hub.thread
    if thread.issued is not None:
        thread.issued.append(call)
    # Operations return their tensors and the handle, or the handle alone.
    boxed = result[-1] if isinstance(result, tuple) and result else result
    if not thread.from_python or not isinstance(boxed, torch.ScriptObject):
        return None
    work: dist.Work | None = dist.Work.unbox(boxed)
    if work is not None:
        hub.handles[work] = call
        thread.handle = work
    return work


def _read(operation: Operation, args: tuple[Any, ...]) -> Call | None:
    """Build the record of a call; None if nothing is sent (tracing) or the arguments are not understood."""
    try:
        inputs = tensors(argument(args, operation.inputs))
        outputs = tensors(argument(args, operation.outputs))
        for tensor in inputs or outputs:
            if tensor.is_meta:
                return None
        return _record(operation, args, inputs, outputs)
    except Exception as error:  # noqa: BLE001  # the user's call continues in any case
        hub.note_gap(f"c10d::{operation.op}: {type(error).__name__}: {error}")
        return None


def _record(operation: Operation, args: tuple[Any, ...], inputs: Any, outputs: Any) -> Call:
    group = known(dist.ProcessGroup.unbox(args[operation.group]))
    members = group.group.ranks
    peer, tag, seq = None, 0, 0
    if operation.is_p2p:
        place = argument(args, operation.peer)
        # The operation has ranks of the group, and records have ranks of the default group.
        peer = ANY_SOURCE if place is None else members[place]
        tag = argument(args, operation.tag, 0)
        seq = next(group.p2p[operation.name, peer, tag])
    else:
        seq = next(group.collectives)
    milliseconds = argument(args, operation.timeout, _OF_GROUP)
    root = argument(args, operation.root)
    thread = hub.thread
    return Call(
        n=next(hub.calls),
        op=operation.name,
        group=group.group,
        seq=seq,
        peer=peer,
        tag=tag,
        root=None if root is None else members[root],
        reduce_op=thread.reduce_op,
        is_async=bool(argument(args, operation.is_async, True)),
        timeout_s=group.group.timeout_s if milliseconds == _OF_GROUP else milliseconds / 1000,
        inputs=inputs,
        outputs=outputs,
        splits=_splits(operation, args) if operation.splits else _EQUAL_PARTS,
        site=call_site(),
        thread=threading.get_ident(),
        by_cpp=not thread.from_python,
        in_backward=bool(thread.backward),
        is_functional=thread.issued is not None,
        behind=_behind(group.group, inputs or outputs),
    )


def _splits(operation: Operation, args: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    taken, given = (tuple(map(int, argument(args, place, ()))) for place in operation.splits or ())
    return taken, given


def _functional(redispatch: Kernel) -> Kernel:
    """Return the kernel of a functional collective, which records the tensors that its calls will fill."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        below, thread = keys & _BELOW, hub.thread
        if hub.is_idle():
            return redispatch(below, *args, **kwargs)
        before = thread.issued, thread.reduce_op, thread.from_python
        issued: list[Call] = []
        # C++ issues the calls of a functional collective, so the caller gets tensors and no handle.
        thread.issued, thread.reduce_op, thread.from_python = issued, _reduction(args), False
        try:
            result = redispatch(below, *args, **kwargs)
        finally:
            thread.issued, thread.reduce_op, thread.from_python = before
        if issued:
            for tensor in tensors(result):
                # A storage keeps this address while its memory is resized or moved (torch 2.9 to 2.15).
                hub.note_result(tensor.untyped_storage()._cdata, issued[-1])  # noqa: SLF001
        return result

    return kernel


def _reduction(args: tuple[Any, ...]) -> str:
    """Return the reduction of a functional collective: the only string among its first two arguments."""
    return args[1].upper() if len(args) > 1 and isinstance(args[1], str) else ""


def _wait_tensor(redispatch: Kernel) -> Kernel:
    """Return the kernel of the wait for a functional collective. A second wait is not recorded."""

    def kernel(keys: Any, tensor: torch.Tensor) -> Any:
        __tracebackhide__ = True
        below = keys & _BELOW
        if hub.is_idle() or not hub.results or (call := _awaited(tensor)) is None:
            return redispatch(below, tensor)
        with hub.waiting(WaitKind.TENSOR, call, timeout_s=call.timeout_s):
            return redispatch(below, tensor)

    return kernel


def _wait_tensors(redispatch: Kernel) -> Kernel:
    """Return the kernel of the wait for several tensors, one after another, as its backend waits."""

    def kernel(keys: Any, given: Sequence[torch.Tensor]) -> Any:
        __tracebackhide__ = True
        below = keys & _BELOW
        if hub.is_idle() or not hub.results:
            return redispatch(below, given)
        with contextlib.ExitStack() as waits:
            # Contexts end in reverse order, and the backend waits for the first tensor first.
            for call in reversed([call for each in given if (call := _awaited(each)) is not None]):
                waits.enter_context(hub.waiting(WaitKind.TENSOR, call, timeout_s=call.timeout_s))
            return redispatch(below, given)

    return kernel


def _awaited(tensor: torch.Tensor) -> Call | None:
    """Return the call that will fill a tensor, if it was not awaited yet."""
    # The key of a storage, as in `_functional` (torch 2.9 to 2.15).
    return None if tensor.is_meta else hub.results.pop(tensor.untyped_storage()._cdata, None)  # noqa: SLF001
