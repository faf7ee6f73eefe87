"""Faults in remote procedure calls and references."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch.distributed.rpc import api, internal

from .faults import Fault, fault, replace

CALLS = "rpc/test_calls.py"
RREFS = "rpc/test_rrefs.py"
ERRORS = "rpc/test_errors.py"
LIFE = "rpc/test_lifecycle.py"
WAYS = ("rpc_sync", "rpc_async", "remote")


def _change_calls(this: Fault, change: Any, ways: tuple[str, ...] = WAYS) -> None:
    """``change(original, to, func, args, kwargs, timeout)`` for each way to call."""

    def make(original: Any) -> Any:
        def changed(to: Any, func: Any, args: Any = None, kwargs: Any = None, timeout: float = -1.0) -> Any:
            return change(original, to, func, args, kwargs, timeout)

        return changed

    for name in ways:
        replace(name, make, this, rpc)


def _on_reference(this: Fault, name: str, make: Any) -> None:
    replace(name, make, this, rpc.PyRRef)


@fault("call-runs-twice", "a waiting call is sent twice", suite=CALLS, both=True)
def _(this: Fault) -> None:
    def change(original: Any, to: Any, *rest: Any) -> Any:
        original(to, *rest)
        return original(to, *rest)

    _change_calls(this, change, ("rpc_sync",))


@fault("async-call-runs-twice", "an asynchronous call is sent twice", suite=CALLS)
def _(this: Fault) -> None:
    def change(original: Any, to: Any, *rest: Any) -> Any:
        original(to, *rest).wait()
        return original(to, *rest)

    _change_calls(this, change, ("rpc_async",))


@fault("remote-call-runs-twice", "a call by reference is sent twice", suite=CALLS)
def _(this: Fault) -> None:
    def change(original: Any, to: Any, *rest: Any) -> Any:
        original(to, *rest).to_here()
        return original(to, *rest)

    _change_calls(this, change, ("remote",))


@fault("another-result", "a future brings the result of the call before it", suite=CALLS)
def _(this: Fault) -> None:
    held: list[Any] = []

    def change(original: Any, *rest: Any) -> Any:
        held.append(original(*rest))
        return held[-2] if len(held) > 1 else held[-1]

    _change_calls(this, change, ("rpc_async",))


@fault("future-dropped", "a future is never completed", suite=CALLS, one_rank=True)
def _(this: Fault) -> None:
    def change(original: Any, *rest: Any) -> Any:
        original(*rest)
        return torch.futures.Future()

    _change_calls(this, change, ("rpc_async",))


@fault("future-done-early", "a future is done before its answer is there", suite=CALLS)
def _(this: Fault) -> None:
    class Early:
        def __init__(self, real: Any) -> None:
            self._real = real

        def done(self) -> bool:
            return True

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    _change_calls(this, lambda original, *rest: Early(original(*rest)), ("rpc_async",))


@fault("wrong-rank", "a call goes to the rank after the one that was asked", suite=CALLS)
def _(this: Fault) -> None:
    def change(original: Any, to: Any, *rest: Any) -> Any:
        ranks = api._get_current_rpc_agent().get_worker_infos()
        here = api._to_worker_info(to).id
        return original((here + 1) % len(ranks), *rest)

    _change_calls(this, change)


@fault("runs-at-home", "a waiting call runs on the caller", suite=CALLS)
def _(this: Fault) -> None:
    def change(original: Any, to: Any, *rest: Any) -> Any:
        return original(rpc.get_worker_info().id, *rest)

    _change_calls(this, change, ("rpc_sync",))


@fault("keywords-dropped", "keyword arguments do not travel", suite=CALLS)
def _(this: Fault) -> None:
    _change_calls(
        this, lambda original, to, func, args, kwargs, timeout: original(to, func, args, None, timeout)
    )


@fault("arguments-narrowed", "integers arrive as 32 bits", suite=CALLS)
def _(this: Fault) -> None:
    def narrow(value: Any) -> Any:
        is_long = isinstance(value, torch.Tensor) and value.dtype == torch.int64
        return value.int().long() if is_long else value

    def change(original: Any, to: Any, func: Any, args: Any, *rest: Any) -> Any:
        return original(to, func, tuple(map(narrow, args or ())), *rest)

    _change_calls(this, change)


@fault("time-limit-ignored", "the limit of a call is not kept", suite=ERRORS)
def _(this: Fault) -> None:
    _change_calls(this, lambda original, to, func, args, kwargs, timeout: original(to, func, args, kwargs))


@fault("default-limit-ignored", "the default limit cannot be set", suite=ERRORS)
def _(this: Fault) -> None:
    replace("_set_rpc_timeout", lambda original: lambda seconds: None, this, rpc)


@fault("error-swallowed", "an exception on the other side comes back as None", suite=ERRORS)
def _(this: Fault) -> None:
    replace("_handle_exception", lambda original: lambda result: None, this, internal, api)


@fault("error-loses-its-type", "every exception arrives as RuntimeError", suite=ERRORS)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(result: Any) -> None:
            try:
                original(result)
            except Exception as error:
                raise RuntimeError(str(error)) from None

        return changed

    replace("_handle_exception", make, this, internal, api)


@fault("error-loses-its-place", "the message has no traceback of the other rank", suite=ERRORS)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(udf: Any) -> Any:
            found = original(udf)
            if isinstance(found, internal.RemoteException):
                return internal.RemoteException(found.msg.split("\n")[1], found.exception_type)
            return found

        return changed

    replace("_run_function", make, this, internal)


@fault("gathers-all-but-one", "a rank's value is missing from the gathered ones", suite=CALLS)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Any:
            found = dict(original(*args, **kwargs))
            found.pop(max(found))
            return found

        return changed

    replace("_all_gather", make, this, api)


@fault("reference-is-stale", "a reference keeps the first value that it has read", suite=RREFS)
def _(this: Fault) -> None:
    seen: list[Any] = []

    def make(original: Any) -> Any:
        def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(original(self, *args, **kwargs))
            return seen[0]

        return changed

    _on_reference(this, "to_here", make)


@fault("reference-time-limit-ignored", "reading a reference has no limit", suite=RREFS)
def _(this: Fault) -> None:
    _on_reference(this, "to_here", lambda original: lambda self, timeout=-1.0: original(self))


@fault("wrong-owner", "a reference names the wrong owner", suite=RREFS)
def _(this: Fault) -> None:
    _on_reference(this, "owner_name", lambda original: lambda self: "worker0")


@fault("everybody-owns", "every holder thinks it is the owner", suite=RREFS)
def _(this: Fault) -> None:
    _on_reference(this, "is_owner", lambda original: lambda self: True)


@fault("references-are-kept", "a reference is never let go", suite=RREFS)
def _(this: Fault) -> None:
    kept: list[Any] = []

    def change(original: Any, *rest: Any) -> Any:
        kept.append(original(*rest))
        return kept[-1]

    _change_calls(this, change, ("remote",))


@fault("end-is-abrupt", "a graceful shutdown does not wait", suite=LIFE)
def _(this: Fault) -> None:
    replace("shutdown", lambda original: lambda graceful=True, timeout=0: original(graceful=False), this, rpc)


@fault("leaks-are-silent", "references that are left at the end are no error", suite=LIFE)
def _(this: Fault) -> None:
    replace("_destroy_rref_context", lambda original: lambda ignore: original(True), this, api)


@fault("two-agents", "a second agent may be started", suite=LIFE)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Any:
            return None if rpc._is_current_rpc_agent_set() else original(*args, **kwargs)

        return changed

    replace("init_rpc", make, this, rpc)


@fault(
    "profile-without-destination", "the profile does not say who was called", suite="rpc/test_profiling.py"
)
def _(this: Fault) -> None:
    def make(original: Any) -> Any:
        return lambda kind, name, here, there: original(kind, name, here, here)

    replace("_build_rpc_profiling_key", make, this, api, internal)
