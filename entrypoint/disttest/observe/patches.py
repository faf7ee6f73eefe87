"""Observation outside of the dispatcher: waits, stores, groups, and calls that come from Python.

Methods of torch's classes are replaced by functions that record the call and then call the method.
:meth:`Patches.remove` restores exactly the original attributes.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.variable import Variable
from torch.distributed import distributed_c10d as c10d

from disttest.observe import groups, hub
from disttest.observe.records import Call, StoreCall, Wait, WaitKind
from disttest.observe.replacing import Original, Replacements
from disttest.observe.sites import call_site

_ISSUING = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
"""Methods of a process group that issue a call and return its handle."""
_TIMEOUTS = frozenset({"set_timeout", "_set_default_timeout"})
"""Methods that change the time limit of a group or of its backend. Each backend class defines its own."""
_STORE_WAITS = ("get", "multi_get", "queue_pop", "wait")
_STORE_CALLS = (
    *("add", "append", "check", "compare_set", "delete_key", "list_keys", "multi_set", "num_keys"),
    *("queue_len", "queue_push", "set", *_STORE_WAITS),
)


class Patches(Replacements):
    """The replaced methods, from construction on."""

    def __init__(self) -> None:
        super().__init__()
        for name in _ISSUING:
            self.replace(dist.ProcessGroup, name, _issuing)
        self.replace(dist.ProcessGroup, "shutdown", _shutdown)
        # Python reaches these classes of C++ under private names only (torch 2.9 to 2.15).
        backend = torch._C._distributed_c10d.Backend  # noqa: SLF001
        for owner in (dist.ProcessGroup, backend, *backend.__subclasses__()):
            for name in _TIMEOUTS & vars(owner).keys():
                self.replace(owner, name, _changes_timeout)
        self.replace(dist.ProcessGroup, "abort", _abort)
        self.replace(dist.Work, "wait", _work_wait)
        self.replace(dist.Work, "get_future", _get_future)
        self.replace(dist.Work, "is_completed", _polling)
        self.replace(torch._C.Future, "wait", _future_wait)  # noqa: SLF001
        self.replace(torch._C.Future, "done", _polling)  # noqa: SLF001
        for name in ("then", "add_done_callback"):
            self.replace(torch._C.Future, name, _calling_back)  # noqa: SLF001
        self.replace(torch._C, "_collect_all", _collecting)  # noqa: SLF001
        for name in _STORE_WAITS:
            self.replace(torch._C._distributed_c10d.Store, name, _store_wait)  # noqa: SLF001
        # After the waits, which are among these names: a tool that takes a call over then takes its wait
        # over, too.
        for name in _STORE_CALLS:
            self.replace(torch._C._distributed_c10d.Store, name, _store_call)  # noqa: SLF001
        # `init_process_group` and `new_group` both meet their peers in this function (torch 2.9 to 2.15).
        self.replace(c10d, "_new_process_group_helper", _make_group)
        self.put(Variable, "_execution_engine", _Engine(Variable._execution_engine))  # noqa: SLF001


def _issuing(original: Original) -> Original:
    reduces = "reduce" in original.__name__

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if hub.is_idle():
            return original(self, *args, **kwargs)
        thread = hub.thread
        before = thread.from_python, thread.reduce_op
        thread.from_python, thread.reduce_op = True, _reduction(args, kwargs) if reduces else ""
        try:
            return original(self, *args, **kwargs)
        finally:
            # Restored, not reset: a method of a group may call another one of the list.
            thread.from_python, thread.reduce_op = before
            # torch has returned the handle by now, so its caller keeps it alive.
            thread.handle = None

    return method


_OPERATORS = {member.value: name for name, member in dist.ReduceOp.RedOpType.__members__.items()}
"""Names by number: comparing torch's enum members is five times as slow."""


def _reduction(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the reduction among the arguments of a method: in its options, or as an argument."""
    # The first argument is always a tensor or a list of tensors.
    for value in (*args[1:], *kwargs.values()):
        operator = getattr(value, "reduceOp", value)
        if isinstance(operator, dist.ReduceOp):
            operator = operator.op  # type: ignore[attr-defined]
        if isinstance(operator, dist.ReduceOp.RedOpType):
            return _OPERATORS[operator.value]
    return ""


def _seconds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """Return the time limit among the arguments of a wait."""
    if not (args or kwargs):
        return None
    limit = next((each for each in (*args, *kwargs.values()) if isinstance(each, timedelta)), None)
    return limit.total_seconds() if limit else None


def _work_wait(original: Original) -> Original:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if hub.is_idle():
            return original(self, *args, **kwargs)
        wait = _begin_work_wait(hub.handles.get(self), _seconds(args, kwargs))
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            hub.end_wait(wait, error)
            raise
        hub.end_wait(wait)
        return result

    return method


def _begin_work_wait(call: Call | None, limit_s: float | None) -> Wait | None:
    __tracebackhide__ = True
    if call is None:
        return hub.begin_wait(WaitKind.WORK, timeout_s=limit_s)
    is_in_one = call is hub.thread.last and not call.is_async  # torch waits in the same line
    return hub.begin_wait(
        WaitKind.WORK,
        call,
        timeout_s=groups.limit_of(call) if limit_s is None else limit_s,
        site=call.site if is_in_one else None,
    )


def _get_future(original: Original) -> Original:
    def get_future(self: Any) -> Any:
        future = original(self)
        # The future completes with the call, but torch gives no way from one to the other.
        if (call := hub.handles.get(self)) is not None:
            hub.handles[future] = call
        return future

    return get_future


def _calls_behind(handle: Any) -> list[Call]:
    """Return the calls that are complete when a handle or a future is done."""
    call = hub.handles.get(handle)
    own = [] if call is None else [call]
    return own + [each for part in hub.parts.get(handle, ()) for each in _calls_behind(part)]


def _awaited(future: Any) -> Call | None:
    """Return the call that a future waits for."""
    # Of several it is the last, which completes after the others of its group.
    pending = next((part for part in hub.parts.get(future, ())[::-1] if not part.done()), None)
    if pending is not None:
        return _awaited(pending)
    behind = _calls_behind(future)  # for a derived future whose parts are done by now
    return behind[-1] if behind else None


def _future_wait(original: Original) -> Original:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if hub.is_idle() or self.done():
            return original(self, *args, **kwargs)
        call = _awaited(self)
        with hub.waiting(WaitKind.FUTURE, call, timeout_s=groups.limit_of(call) if call else None):
            result = original(self, *args, **kwargs)
        if self in hub.parts:
            self.done()  # records that the other calls are complete, too
        return result

    return wait


def _polling(original: Original) -> Original:
    def is_done(self: Any) -> bool:
        done: bool = original(self)
        # A test may poll instead of waiting. Without this record its call would stay pending.
        if done and not hub.is_idle():
            for call in _calls_behind(self):
                hub.note_over(WaitKind.WORK, call)
        return done

    return is_done


def _calling_back(original: Original) -> Original:
    def then(self: Any, callback: Any, *args: Any, **kwargs: Any) -> Any:
        calls = [] if hub.is_idle() else _calls_behind(self)
        if not calls:
            return original(self, callback, *args, **kwargs)

        # A callback runs when the calls are complete, possibly in a thread of C++ in which no wait was seen.
        def call_back(future: Any) -> Any:
            __tracebackhide__ = True
            for call in calls:
                hub.note_over(WaitKind.FUTURE, call)
            return callback(future)

        following = original(self, call_back, *args, **kwargs)
        if following is not None:
            hub.parts[following] = (self,)
        return following

    return then


def _collecting(original: Original) -> Original:
    def collect_all(futures: Any) -> Any:
        # Once, because the argument may be an iterator.
        parts = tuple(futures)
        collected = original(list(parts))
        if not hub.is_idle():
            hub.parts[collected] = parts
        return collected

    return collect_all


def _store_wait(original: Original) -> Original:
    def wait(self: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if hub.is_idle():
            return original(self, keys, *args, **kwargs)
        # A single key is a text, which would otherwise be taken apart into characters.
        names = (keys,) if isinstance(keys, str) else tuple(map(str, keys))
        own = _seconds(args, kwargs)
        limit_s = self.timeout.total_seconds() if own is None else own
        with hub.waiting(WaitKind.STORE, keys=names, timeout_s=limit_s, is_public=_is_public(self)):
            return original(self, keys, *args, **kwargs)

    return wait


def _is_public(store: Any) -> bool:
    """Return whether processes that are not ranks may set keys of a store."""
    # A HashStore is in the memory of this process. The default group's store has a prefix that only the ranks know.
    # Any process can reach a file, or a server at an address that the test has chosen.
    # torch has no public function that returns the store of a group (torch 2.9 to 2.15).
    default = c10d._get_default_store() if dist.is_initialized() else None  # noqa: SLF001
    while store is not default and isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    return store is not default and not isinstance(store, torch._C._distributed_c10d.HashStore)  # noqa: SLF001


def _store_call(original: Original) -> Original:
    name = original.__name__

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        hub.note_store_call()
        if hub.is_idle() or not hub.takers("take_store"):
            return original(self, *args, **kwargs)
        call = StoreCall(name, (*args, *kwargs.values()), call_site(), threading.get_ident())
        return hub.run_through("take_store", call, partial(original, self, *args, **kwargs))

    return method


def _shortest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """Return the shortest time limit among the arguments: a timedelta, or that of a store."""
    values = (*args, *kwargs.values())
    limits = [each for each in values if isinstance(each, timedelta)]
    limits += [each.timeout for each in values if isinstance(each, dist.Store)]  # type: ignore[attr-defined]
    return min(limit.total_seconds() for limit in limits) if limits else None


def _make_group(original: Original) -> Original:
    def make(group_size: int, group_rank: int, ranks: list[int], *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        members = tuple(ranks or range(group_size))
        # `args` begins behind `ranks`: backend, store, group name.
        name = str(kwargs.get("group_name") or (args[2] if len(args) > 2 else ""))
        with hub.waiting(
            WaitKind.GROUP,
            timeout_s=_shortest(args, kwargs),
            ranks=members,
            group_name=name,
            group_description=str(kwargs.get("group_desc") or ""),
        ):
            made = original(group_size, group_rank, ranks, *args, **kwargs)
        # A rank that is not a member gets a placeholder, not a group.
        if isinstance(made[0], dist.ProcessGroup) and not hub.is_idle():
            hub.notify("on_group", groups.note_made(made[0], tuple(ranks)), made=True)
        return made

    return make


def _shutdown(original: Original) -> Original:
    def shutdown(self: Any) -> None:
        __tracebackhide__ = True
        with hub.waiting(WaitKind.GROUP):
            original(self)
        if (group := groups.forget(self)) is not None:
            if hub.queues is not None:
                hub.queues.forget(group.name)
            # After the end of the original: a shutdown may wait for pending calls, which still belong to the
            # group.
            hub.notify("on_group", group, made=False)

    return shutdown


def _abort(original: Original) -> Original:
    def abort(self: Any) -> None:
        __tracebackhide__ = True
        original(self)
        if not hub.is_idle():
            hub.notify("on_abort", groups.known(self).group)

    return abort


def _changes_timeout(original: Original) -> Original:
    def set_timeout(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # After the call: the new limit is read back from torch, which may have refused it.
        groups.renew_timeouts()

    return set_timeout


class _Engine:
    """The autograd engine with a note that it runs. The engine's own type accepts no attributes."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the engine. Calls that are issued meanwhile belong to a backward pass."""
        __tracebackhide__ = True
        hub.thread.backward += 1
        try:
            with hub.waiting(WaitKind.BACKWARD, roots=args[0] if args else ()):
                return self._engine.run_backward(*args, **kwargs)
        finally:
            hub.thread.backward -= 1
