"""Observation of operations on tensors, active only while a tool requests it.

A dispatch mode below all others is active in each requesting thread, and in each Python thread that starts while a tool
may request it. Users' modes begin and end in their order. Compiled regions stay compiled, and the operations that they
dispatch are observed. Methods that read a tensor without the dispatcher are replaced by functions that report the read.

An operation costs 0.8 µs without the mode and 5.4 µs with it. A fallback at a free dispatch key costs 4.2 µs, but
Dynamo's guards compare the keys of the thread, tracing with the Python dispatcher fails at an unknown key, and
below the key Python structured kernels are decomposed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from disttest.observe import hub
from disttest.observe.replacing import Original, Replacements, keep_from_dynamo

_PAST_THE_DISPATCHER = (
    "__array__",
    "__dlpack__",
    "__format__",
    "__reduce_ex__",  # used by torch.save and by object collectives
    "__repr__",
    "numpy",
    "tolist",
)


class _WatchedThread(threading.local):
    """The observation state of a thread."""

    def __init__(self) -> None:
        self.handling = 0
        """Nesting depth of the mode's handler, during which torch has removed the mode from the stack."""
        self.stays = False
        """Whether the thread is observed until it ends."""
        self.started: list[threading.Thread] = []
        """Threads that it has started. While they live, they may request operations of this thread."""


# The stack of modes has no public interface. These private functions are those that TorchDispatchMode uses (torch 2.9
# to 2.15):
# https://github.com/pytorch/pytorch/blob/main/torch/utils/_python_dispatch.py
_thread = _WatchedThread()
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl  # noqa: SLF001
_asking: set[int] = set()
"""Ids of the tools that request operations."""


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode: it reports each operation that reaches it and runs it."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Have Dynamo compile as if the mode did not exist. With any other mode it skips frames."""
        # https://github.com/pytorch/pytorch/pull/161648 added this. Older releases of torch ignore it.
        return True


def _dispatch(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    __tracebackhide__ = True
    if types and any(each.__torch_dispatch__ is not _NO_DISPATCH for each in types):
        # Without a mode on the stack, a subclass unwraps its tensors (torch 2.9 to 2.15).
        if not torch._C._len_torch_dispatch_stack():  # noqa: SLF001
            return NotImplemented  # the subclass unwraps its tensors, and its inner operations arrive here
    elif _asking:
        hub.notify("on_op", func, args, kwargs or {})
    thread = _thread
    thread.handling += 1
    try:
        return func(*args, **kwargs) if kwargs else func(*args)
    finally:
        thread.handling -= 1


# Set after the class is made: torch would wrap it for Dynamo at its first call and import Dynamo, which takes
# seconds.
keep_from_dynamo(_dispatch)
vars(_dispatch)["_torchdynamo_disable"] = True
_Mode.__torch_dispatch__ = _dispatch  # type: ignore[method-assign]
_mode = _Mode()  # type: ignore[no-untyped-call]


def ask(tool: object) -> None:
    """Notify a tool of operations from now on, in this thread and in those that are observed anyway."""
    _asking.add(id(tool))
    _enter()


def prepare() -> None:
    """Observe this thread from now on, although no tool is notified before one requests it."""
    # torch gives each node of a graph the modes that are active when its backward pass begins, so a later start would
    # be too late.
    _enter()


def leave(tool: object) -> None:
    """Stop notifying a tool. A thread that stays observed costs a few microseconds per operation."""
    _asking.discard(id(tool))
    if not _asking:
        _leave_thread()


def is_watched() -> bool:
    """Return whether the mode is on this thread's stack."""
    # The stack itself is read, because the autograd engine restores its caller's modes after each node of a graph
    # (torch 2.9 to 2.15).
    count = torch._C._len_torch_dispatch_stack()  # noqa: SLF001
    return any(torch._C._get_dispatch_stack_at(place) is _mode for place in range(count))  # noqa: SLF001


def has_threads() -> bool:
    """Return whether other Python threads may be observed as well."""
    return _thread.stays or _has_started()


def _has_started() -> bool:
    started = _thread.started
    if started:
        started[:] = [each for each in started if each.is_alive()]
    return bool(started)


def _enter() -> None:
    # Inside the handler torch has taken the mode off the stack, and puts it back afterwards.
    if _thread.handling:
        return
    # The functions of TorchDispatchMode: its `with` would have to end in the same thread and order (torch 2.9 to 2.15).
    if not torch._C._len_torch_dispatch_stack():  # noqa: SLF001
        # The usual case, ten times as fast as the other one.
        torch._C._push_on_torch_dispatch_stack(_mode)  # noqa: SLF001
    elif not is_watched():
        _change_stack(lambda modes: modes.insert(0, _mode))


def _leave_thread() -> None:
    if not is_watched() or _thread.handling or _thread.stays or _has_started():
        return
    # The counterpart of `_enter` (torch 2.9 to 2.15).
    if torch._C._len_torch_dispatch_stack() == 1:  # noqa: SLF001
        torch._C._pop_torch_dispatch_stack(None)  # noqa: SLF001
    else:
        _change_stack(lambda modes: modes.remove(_mode))


def _change_stack(change: Callable[[list[Any]], None]) -> None:
    """Change the user's modes of this thread, lowest first. torch's own modes have separate places."""
    # torch takes modes off the stack from the top only (torch 2.9 to 2.15).
    own = len([key for key in _OWN if torch._C._get_dispatch_mode(key) is not None])  # noqa: SLF001
    count = torch._C._len_torch_dispatch_stack() - own  # noqa: SLF001
    modes = [torch._C._pop_torch_dispatch_stack(None) for _ in range(count)][::-1]  # noqa: SLF001
    change(modes)
    for mode in modes:
        torch._C._push_on_torch_dispatch_stack(mode)  # noqa: SLF001


# torch's own modes, such as those of functional and fake tensors (torch 2.9 to 2.15).
_OWN = tuple(torch._C._TorchDispatchModeKey.__members__.values())  # noqa: SLF001


class Watching(Replacements):
    """The attributes that are replaced while a tool may request operations."""

    # Only while needed: from Python 3.13 on, a class that changes a thousand times is no longer cached by the
    # interpreter (MAX_VERSIONS_PER_CLASS in https://github.com/python/cpython/blob/main/Objects/typeobject.c).
    def __init__(self) -> None:
        super().__init__()
        for name in _PAST_THE_DISPATCHER:
            self.replace(torch.Tensor, name, _reading)
        self.replace(torch.UntypedStorage, "resize_", _reading)
        self.replace(threading.Thread, "start", _starting)
        self.replace(threading.Thread, "_bootstrap_inner", _running)

    def remove(self) -> None:
        """Restore the attributes and stop all notifications."""
        super().remove()
        _asking.clear()
        _thread.started.clear()
        _leave_thread()


def _reading(original: Original) -> Original:
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if _asking:
            hub.notify("on_op", original, (self, *args), kwargs)
        return original(self, *args, **kwargs)

    return read


def _starting(original: Original) -> Original:
    def start(self: threading.Thread) -> None:
        if not hub.is_idle():
            # The new thread may run a backward pass through nodes that this thread has made.
            _enter()
            _thread.started.append(self)
        original(self)

    return start


def _running(original: Original) -> Original:
    def _bootstrap_inner(self: threading.Thread) -> None:
        if not hub.is_idle():
            _enter()
            _thread.stays = True
        original(self)

    return _bootstrap_inner
