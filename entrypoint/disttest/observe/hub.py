"""The registry between observers and tools: the tools of this process, and the state of each thread.

Observers (kernels, patches) pass records to this module. Tools are registered here. Neither knows the other.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from disttest.observe.operations import NEWEST_READ
from disttest.observe.records import Call, Site, Wait, WaitKind
from disttest.observe.sites import call_site
from disttest.observe.tool import CALLBACKS, Tool

if TYPE_CHECKING:
    from disttest.observe.queues import Queues


class _CallingThread(threading.local):
    """The state of a thread."""

    quiet = False
    """Whether a tool is running, or observations are suppressed."""
    from_python = False
    """Whether Python called a method of a process group, so that its caller gets the handle."""
    reduce_op = ""
    """Reduction of the call that is about to be issued."""
    issued: list[Call] | None = None
    """The calls that a functional collective has issued."""
    backward = 0
    """Nesting depth of the autograd engine in this thread."""
    # Without this reference, torch would create another object for its caller.
    handle: Any = None
    """Handle of the running call from Python."""
    last: Call | None = None
    """The last call that the thread issued, without tensors."""


thread = _CallingThread()
# Weak keys: a handle that has disappeared can no longer be awaited from Python (`held_calls`).
handles: WeakKeyDictionary[Any, Call] = WeakKeyDictionary()
"""Handles and futures that are referenced in Python, with their calls."""
parts: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()
"""Futures made from other ones (``then``, ``collect_all``), which must complete before them."""
queues: Queues | None = None
"""Queues of the GPUs; None while the layer is not installed."""
results: dict[int, Call] = {}
"""Storages that functional collectives will fill, with their calls."""
_MOST_RESULTS = 10_000
"""Number of unawaited results that are kept. The oldest are dropped."""

_tools: tuple[Tool, ...] = ()
_callbacks: dict[str, tuple[Callable[..., Any], ...]] = dict.fromkeys(CALLBACKS, ())
_gaps: dict[str, None] = {}
_store_calls = 0
calls, waits = itertools.count(1), itertools.count(1)


def set_tools(tools: Sequence[Tool]) -> None:
    """Notify exactly these tools from now on."""
    global _tools  # one set of tools per process
    _tools = tuple(tools)
    for name in CALLBACKS:
        # Only callbacks that a tool overrides are kept, so that nothing is recorded that no tool reads.
        overriding = [tool for tool in _tools if getattr(type(tool), name) is not getattr(Tool, name)]
        _callbacks[name] = tuple(getattr(tool, name) for tool in overriding)


def tools() -> tuple[Tool, ...]:
    """Return the registered tools."""
    return _tools


def listens(name: str) -> bool:
    """Return whether a tool implements this callback."""
    return bool(_callbacks[name])


def is_idle() -> bool:
    """Return whether observations of this thread are dropped."""
    return not _tools or thread.quiet


def note_store_call() -> None:
    """Count a call of a store from Python."""
    global _store_calls
    if not thread.quiet:
        _store_calls += 1


def store_calls() -> int:
    """Return the number of calls of stores. It has changed if there was one since."""
    return _store_calls


def note_gap(what: str) -> None:
    """Record something that cannot be observed here."""
    _gaps.setdefault(what)


def note_missing(name: str) -> None:
    """Record a name that torch lacks as a gap, if torch is newer than this layer."""
    # In a newer torch the name may have changed. An older torch lacks the function itself, so nothing can call it.
    # From 2.9 to 2.15 names were added and none was removed. Counted as gaps, missing names had disabled the proof of
    # hangs.
    import torch

    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release > NEWEST_READ:
        note_gap(f"{name}: torch {torch.__version__} does not have it")


def gaps() -> tuple[str, ...]:
    """Return descriptions of everything that cannot be observed in this process."""
    return tuple(_gaps)


def notify(name: str, *args: Any, **kwargs: Any) -> None:
    """Notify all tools that implement a callback. Calls that they make are not observed."""
    __tracebackhide__ = True
    listeners = _callbacks[name]
    if not listeners or thread.quiet:
        return
    thread.quiet = True
    try:
        for listener in listeners:
            listener(*args, **kwargs)
    finally:
        thread.quiet = False


def takers(name: str) -> tuple[Callable[[Any, Callable[[], Any]], Any], ...]:
    """Return the callbacks that may take over a call."""
    return _callbacks[name]


@contextmanager
def unobserved() -> Iterator[None]:
    """Suppress observations of this thread inside the block."""
    before, thread.quiet = thread.quiet, True
    try:
        yield
    finally:
        thread.quiet = before


def run_through(name: str, call: Any, run: Callable[[], Any]) -> Any:
    """Run a call through the tools that take it over."""
    __tracebackhide__ = True
    for taker in takers(name):
        run = partial(taker, call, run)
    return run()


def begin_wait(
    kind: WaitKind,
    call: Call | None = None,
    *,
    keys: tuple[str, ...] = (),
    timeout_s: float | None = None,
    site: Site | None = None,
    ranks: tuple[int, ...] = (),
    group_name: str = "",
    group_description: str = "",
    calls: tuple[Call, ...] = (),
    is_public: bool = False,
    roots: tuple[Any, ...] = (),
) -> Wait | None:
    """Record that the thread begins to wait; return None if no tool is notified."""
    __tracebackhide__ = True
    if thread.quiet or not (_callbacks["on_wait"] or _callbacks["on_done"]):
        return None
    wait = Wait(
        n=next(waits),
        kind=kind,
        call=call,
        keys=keys,
        timeout_s=timeout_s,
        site=site or call_site(),
        thread=threading.get_ident(),
        ranks=ranks,
        group_name=group_name,
        group_description=group_description,
        calls=calls,
        is_public=is_public,
        roots=roots,
    )
    notify("on_wait", wait)
    return wait


def end_wait(wait: Wait | None, error: BaseException | None = None) -> None:
    """Record that the thread has stopped waiting."""
    if wait is None:
        return
    notify("on_done", wait, error)
    # Only a wait that ended well proves that its calls are complete.
    if error is None and queues is not None and queues.are_used:
        queues.note_done(wait)


@contextmanager
def waiting(kind: WaitKind, call: Call | None = None, **facts: Any) -> Iterator[None]:
    """Record a wait for the duration of the block. It is for rare waits: a context manager doubles the cost."""
    __tracebackhide__ = True
    wait = begin_wait(kind, call, **facts)
    try:
        yield
    except BaseException as error:
        end_wait(wait, error)
        raise
    end_wait(wait)


def held_calls() -> frozenset[int]:
    """Return the numbers of calls whose handle or future is still referenced in Python and may be awaited."""
    # A copy: other threads add handles, and the garbage collector removes them.
    return frozenset(call.n for call in list(handles.values()))


def note_over(kind: WaitKind, call: Call) -> None:
    """Record that a call was found complete without waiting, as a wait that takes no time."""
    end_wait(begin_wait(kind, call))


def note_result(storage: int, call: Call) -> None:
    """Record the storage that a functional collective will fill."""
    # An address that is used again moves to the end, because the oldest entry is dropped first.
    results.pop(storage, None)
    results[storage] = call
    while len(results) > _MOST_RESULTS:
        del results[next(iter(results))]
