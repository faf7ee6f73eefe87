"""Operations on tensors, seen only while a tool asks for them.

A dispatch mode below all others, in each thread that asks and in each thread of Python that starts while a tool is there
which may ask. Modes of torch's users begin and end as they would; compiled regions stay compiled, and the operations that
they hand to the dispatcher are seen. What reads a tensor past the dispatcher is replaced by functions that tell of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from disttest.observe import hub
from disttest.observe.frames import keep_from_dynamo
from disttest.observe.replacing import Original, Replacements

_PAST_THE_DISPATCHER = (
    "__array__",
    "__dlpack__",
    "__format__",
    "__reduce_ex__",  # of torch.save and of object collectives
    "__repr__",
    "numpy",
    "tolist",
)


class _WatchedThread(threading.local):
    """What is in this thread."""

    def __init__(self) -> None:
        self.handling = 0
        """How deep it is in the mode's handler, in which torch has taken the mode off the stack."""
        self.stays = False
        """It is watched for as long as it lives."""
        self.started: list[threading.Thread] = []
        """Threads that it has started and that may live: while they do, they may ask for what happens in this one."""


_thread = _WatchedThread()
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl  # noqa: SLF001
_asking: set[int] = set()
"""Tools that want to be told, by their ids."""


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells of each operation that reaches it and hands it on."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo compiles as if it were not there; with any other mode it skips frames."""
        return True


def _dispatch(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    __tracebackhide__ = True
    if types and any(each.__torch_dispatch__ is not _NO_DISPATCH for each in types):
        if not torch._C._len_torch_dispatch_stack():  # noqa: SLF001
            return (
                NotImplemented  # the subclass takes its tensors apart, and what it does with them comes here
            )
    elif _asking:
        hub.tell("on_op", func, args, kwargs or {})
    thread = _thread
    thread.handling += 1
    try:
        return func(*args, **kwargs) if kwargs else func(*args)
    finally:
        thread.handling -= 1


# After the class is made: torch would wrap it for Dynamo at its first call, and import Dynamo, which takes seconds.
keep_from_dynamo(_dispatch)
vars(_dispatch)["_torchdynamo_disable"] = True
_Mode.__torch_dispatch__ = _dispatch  # type: ignore[method-assign]
_mode = _Mode()  # type: ignore[no-untyped-call]


def ask(tool: object) -> None:
    """From here on a tool is told of operations: in this thread, and in those that are watched anyway."""
    _asking.add(id(tool))
    _enter()


def stand_by() -> None:
    """This thread is watched from here on, though nobody is told before a tool asks.

    torch gives each node of a graph the modes that are there when its backward pass begins: to ask later would be too late.
    """
    _enter()


def leave(tool: object) -> None:
    """It wants to know no more; a thread that another one leaves watched costs a few microseconds for each operation."""
    _asking.discard(id(tool))
    if not _asking:
        _leave_thread()


def is_watched() -> bool:
    """Whether this thread is, as the stack has it: the autograd engine puts back its caller's after each node of a graph."""
    count = torch._C._len_torch_dispatch_stack()  # noqa: SLF001
    return any(torch._C._get_dispatch_stack_at(place) is _mode for place in range(count))  # noqa: SLF001


def has_threads() -> bool:
    """Whether other threads of Python may be watched beside this one."""
    return _thread.stays or _has_started()


def _has_started() -> bool:
    started = _thread.started
    if started:
        started[:] = [each for each in started if each.is_alive()]
    return bool(started)


def _enter() -> None:
    if _thread.handling:
        return
    if not torch._C._len_torch_dispatch_stack():  # noqa: SLF001
        torch._C._push_on_torch_dispatch_stack(_mode)  # noqa: SLF001  # nearly always, and a tenth of the other way
    elif not is_watched():
        _change_stack(lambda modes: modes.insert(0, _mode))


def _leave_thread() -> None:
    if not is_watched() or _thread.handling or _thread.stays or _has_started():
        return
    if torch._C._len_torch_dispatch_stack() == 1:  # noqa: SLF001
        torch._C._pop_torch_dispatch_stack(None)  # noqa: SLF001
    else:
        _change_stack(lambda modes: modes.remove(_mode))


def _change_stack(change: Callable[[list[Any]], None]) -> None:
    """Change the modes of the user in this thread, from the lowest one on; torch's own have places of their own."""
    own = len([key for key in _OWN if torch._C._get_dispatch_mode(key) is not None])  # noqa: SLF001
    count = torch._C._len_torch_dispatch_stack() - own  # noqa: SLF001
    modes = [torch._C._pop_torch_dispatch_stack(None) for _ in range(count)][::-1]  # noqa: SLF001
    change(modes)
    for mode in modes:
        torch._C._push_on_torch_dispatch_stack(mode)  # noqa: SLF001


_OWN = tuple(torch._C._TorchDispatchModeKey.__members__.values())  # noqa: SLF001


class Watching(Replacements):
    """What is replaced while a tool is there that may ask."""

    def __init__(self) -> None:
        super().__init__()
        for name in _PAST_THE_DISPATCHER:
            self.replace(torch.Tensor, name, _reading)
        self.replace(torch.UntypedStorage, "resize_", _reading)
        self.replace(threading.Thread, "start", _starting)
        self.replace(threading.Thread, "_bootstrap_inner", _running)

    def remove(self) -> None:
        """Put it back; nobody is told any more."""
        super().remove()
        _asking.clear()
        _thread.started.clear()
        _leave_thread()


def _reading(original: Original) -> Original:
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if _asking:
            hub.tell("on_op", original, (self, *args), kwargs)
        return original(self, *args, **kwargs)

    return read


def _starting(original: Original) -> Original:
    def start(self: threading.Thread) -> None:
        if not hub.is_idle():
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
