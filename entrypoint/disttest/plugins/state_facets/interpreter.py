"""State of the Python interpreter."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

from disttest.clock import monotonic
from disttest.host.imports import loaded
from disttest.limits import THREAD_END_S
from disttest.runtime.rank.facet import MISSING, Facet, Setting, Values, attribute, change, presence, settings

_read_at_s = 0.0
"""When the facet was last read: the threads that a test has left have one limit together."""


def threads() -> Values:
    """The threads that a test may have started, by name."""
    # A dummy thread belongs to a C library, for example autograd; it has called into Python once.
    real = (t for t in threading.enumerate() if not isinstance(t, threading._DummyThread))
    others = [t for t in real if t is not threading.main_thread()]
    return {t.name: t.ident for t in others if not _is_of_compiler(t)} if others else {}


def _is_of_compiler(thread: threading.Thread) -> bool:
    """Whether torch's compiler started the thread, which it keeps for all compilations of the process."""
    if (module := loaded("torch._inductor.async_compile")) is None:
        return False
    pool = module.AsyncCompile.pool
    # Private: the workers of a pool (Python 3.11 to 3.13), the function of a thread.
    is_worker = bool(pool.cache_info().currsize) and thread in pool()._threads
    module_of_target = getattr(getattr(thread, "_target", None), "__module__", "")
    return is_worker or str(module_of_target).startswith("torch._inductor.")


def _read_threads() -> Values:
    global _read_at_s
    _read_at_s = monotonic()
    return threads()


def _describe_thread(what: str, now: Any, then: Any) -> str:
    found = next((thread for thread in threading.enumerate() if thread.ident == now), None)
    if found is not None:
        # A queue or an executor that the test has closed ends its thread a moment later. Workers of a pool wait together.
        found.join(max(0.0, _read_at_s + THREAD_END_S - monotonic()))
    is_over = now is not MISSING and then is MISSING and (found is None or not found.is_alive())
    return "" if is_over else presence(what, now, then)


def _has_ended(name: str, then: Any) -> bool:
    return then is MISSING and name not in threads()


def _restore_limit(_name: str, then: Any) -> bool:
    sys.setrecursionlimit(then)
    return True


def _describe_limit(what: str, now: Any, then: Any) -> str:
    # torch's compiler sets this limit each time.
    is_of_compiler = now == 2000 and loaded("torch._inductor.compile_fx") is not None
    return "" if is_of_compiler else change(what, now, then)


def _restore_path(_name: str, then: tuple[str, ...]) -> bool:
    # setuptools, which torch's compiler imports, adds its folder once for its process.
    sys.path[:] = [*then, *(entry for entry in sys.path if _is_of_setuptools(entry) and entry not in then)]
    return True


def _is_of_setuptools(entry: str) -> bool:
    return str(entry).endswith("/setuptools/_vendor")


def _describe_path(what: str, now: Any, then: Any) -> str:
    without = [[entry for entry in path if not _is_of_setuptools(entry)] for path in (now, then)]
    return "" if without[0] == without[1] else change(what, now, then)


def never(_name: Any, _then: Any) -> bool:
    """Refuse to restore a value that cannot be restored."""
    return False


def in_place(values: list[Any]) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return getter and setter for the content of a list whose identity must be kept."""

    def put(then: tuple[Any, ...]) -> None:
        # Other modules may hold the list itself, as after `from sys import path`.
        values[:] = then

    return lambda: tuple(values), put


def _put_gc(then: bool) -> None:
    (gc.enable if then else gc.disable)()


def _of_tests(get: Callable[[], Any]) -> Callable[[], Any]:
    """Read a trace function; None for a debugger's, which changes with each breakpoint."""

    def read() -> Any:
        function = get()
        modules = (type(function).__module__, getattr(function, "__module__", None))
        return None if any("pydevd" in str(module) for module in modules) else function

    return read


_threads_trace, _put_threads_trace = attribute(threading, "_trace_hook")

FACETS = (
    Facet("thread", _read_threads, _has_ended, _describe_thread),
    settings(
        "tracing",
        Setting("function", _of_tests(sys.gettrace), sys.settrace),
        Setting("profile", sys.getprofile, sys.setprofile),
        Setting("function of new threads", _of_tests(_threads_trace), _put_threads_trace),
        Setting("profile of new threads", *attribute(threading, "_profile_hook")),
    ),
    settings(
        "interpreter",
        Setting("unraisablehook", *attribute(sys, "unraisablehook")),
        Setting("displayhook", *attribute(sys, "displayhook")),
        Setting("breakpointhook", *attribute(sys, "breakpointhook")),
        Setting("switch interval", sys.getswitchinterval, sys.setswitchinterval),
        # `threading.stack_size` both reads and sets the value.
        Setting("stack size of threads", threading.stack_size, threading.stack_size),
        Setting("dlopen flags", sys.getdlopenflags, sys.setdlopenflags),
        Setting("longest integer text", sys.get_int_max_str_digits, sys.set_int_max_str_digits),
        Setting("dont_write_bytecode", *attribute(sys, "dont_write_bytecode")),
        Setting("sys.meta_path", *in_place(sys.meta_path)),
        Setting("sys.path_hooks", *in_place(sys.path_hooks)),
        Setting("sys.argv", *in_place(sys.argv)),
    ),
    Facet("recursion limit", lambda: {"": sys.getrecursionlimit()}, _restore_limit, _describe_limit),
    Facet("sys.path", lambda: {"": tuple(sys.path)}, _restore_path, _describe_path),
    # torch replaces it while it creates the default group.
    settings("hook", Setting("excepthook", *attribute(sys, "excepthook")), made_for_tests=True),
    settings(
        "garbage collector",
        Setting("enabled", gc.isenabled, _put_gc),
        Setting("thresholds", gc.get_threshold, lambda then: gc.set_threshold(*then)),
        Setting("debug flags", gc.get_debug, gc.set_debug),
        Setting("callbacks", *in_place(gc.callbacks)),
    ),
)
