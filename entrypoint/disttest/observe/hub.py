"""Between those who see and those who are told: the tools of this process, and what each thread is doing.

What sees (kernels, patches) comes here with records; what is told (tools) has been added here. Neither knows the other.
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
    """What this thread is at."""

    quiet = False
    """A tool is running, or what is seen is not to be told."""
    from_python = False
    """A method of a process group was called from Python: its caller gets the handle."""
    reduce_op = ""
    """Of the call that is about to be issued."""
    issued: list[Call] | None = None
    """The calls that a functional collective has issued."""
    backward = 0
    """How many times the autograd engine runs in it."""
    handle: Any = None
    """Of the call from Python that is running: a handle that nobody in Python holds would be made anew for its caller."""
    last: Call | None = None
    """The last call that it has issued, without tensors."""


thread = _CallingThread()
handles: WeakKeyDictionary[Any, Call] = WeakKeyDictionary()
"""Handles and futures that somebody in Python holds, with their calls."""
parts: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()
"""Futures that are made of other ones (``then``, ``collect_all``): these have to be done before."""
queues: Queues | None = None
"""Of the GPUs; None where the layer is not in torch."""
results: dict[int, Call] = {}
"""Storages that functional collectives will write, with their calls."""
_MOST_RESULTS = 10_000
"""Results that nobody waits for; the oldest are forgotten."""

_tools: tuple[Tool, ...] = ()
_told: dict[str, tuple[Callable[..., Any], ...]] = dict.fromkeys(CALLBACKS, ())
_gaps: dict[str, None] = {}
_store_calls = 0
calls, waits = itertools.count(1), itertools.count(1)


def set_tools(tools: Sequence[Tool]) -> None:
    """From here on these are told."""
    global _tools  # one set of tools per process
    _tools = tuple(tools)
    for name in CALLBACKS:
        overriding = [tool for tool in _tools if getattr(type(tool), name) is not getattr(Tool, name)]
        _told[name] = tuple(getattr(tool, name) for tool in overriding)


def tools() -> tuple[Tool, ...]:
    """Those that are told."""
    return _tools


def listens(name: str) -> bool:
    """Whether a tool is there that is told of this."""
    return bool(_told[name])


def is_idle() -> bool:
    """Whether nobody is to be told of what this thread does."""
    return not _tools or thread.quiet


def note_store_call() -> None:
    """A store is called from Python."""
    global _store_calls
    if not thread.quiet:
        _store_calls += 1


def store_calls() -> int:
    """How often that was; another number than before if it was since."""
    return _store_calls


def note_gap(what: str) -> None:
    """Something cannot be seen here."""
    _gaps.setdefault(what)


def note_missing(name: str) -> None:
    """Torch has no such name: one that came before it has nothing to be seen, a newer one may have another name for it."""
    import torch

    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release > NEWEST_READ:
        note_gap(f"{name}: torch {torch.__version__} does not have it")


def gaps() -> tuple[str, ...]:
    """What cannot be seen in this process, each in words."""
    return tuple(_gaps)


def tell(name: str, *args: Any, **kwargs: Any) -> None:
    """Tell all tools that listen; what they do themselves is told to nobody."""
    __tracebackhide__ = True
    listeners = _told[name]
    if not listeners or thread.quiet:
        return
    thread.quiet = True
    try:
        for listener in listeners:
            listener(*args, **kwargs)
    finally:
        thread.quiet = False


def takers(name: str) -> tuple[Callable[[Any, Callable[[], Any]], Any], ...]:
    """The tools that may take a call; ``name`` is their callback's."""
    return _told[name]


@contextmanager
def unobserved() -> Iterator[None]:
    """What this thread does inside is told to nobody."""
    before, thread.quiet = thread.quiet, True
    try:
        yield
    finally:
        thread.quiet = before


def hand_on(name: str, call: Any, run: Callable[[], Any]) -> Any:
    """Run a call, by way of the tools that take it."""
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
    """The thread begins to wait; None where nobody is to be told."""
    __tracebackhide__ = True
    if thread.quiet or not (_told["on_wait"] or _told["on_done"]):
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
    tell("on_wait", wait)
    return wait


def end_wait(wait: Wait | None, error: BaseException | None = None) -> None:
    """It has stopped waiting."""
    if wait is None:
        return
    tell("on_done", wait, error)
    if error is None and queues is not None and queues.are_used:
        queues.note_done(wait)


@contextmanager
def waiting(kind: WaitKind, call: Call | None = None, **facts: Any) -> Iterator[None]:
    """The thread waits inside; for waits that are rare, since a context manager costs as much as the rest."""
    __tracebackhide__ = True
    wait = begin_wait(kind, call, **facts)
    try:
        yield
    except BaseException as error:
        end_wait(wait, error)
        raise
    end_wait(wait)


def held_calls() -> frozenset[int]:
    """Numbers of the calls of which somebody in Python still has a handle or a future, and may wait for it."""
    return frozenset(call.n for call in list(handles.values()))


def note_over(kind: WaitKind, call: Call) -> None:
    """Somebody has learnt that a call is over without having waited for it: a wait that takes no time."""
    end_wait(begin_wait(kind, call))


def note_result(storage: int, call: Call) -> None:
    """A functional collective has promised this storage."""
    results.pop(storage, None)
    results[storage] = call
    while len(results) > _MOST_RESULTS:
        del results[next(iter(results))]
