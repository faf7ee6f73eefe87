"""State of the Python interpreter."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

from disttest.runtime.rank.facet import Facet, Setting, Values, attribute, presence, settings


def _threads() -> Values:
    # A dummy thread belongs to a C library, for example autograd; it has called into Python once.
    real = (t for t in threading.enumerate() if not isinstance(t, threading._DummyThread))
    return {t.name: t.ident for t in real if t is not threading.main_thread()}


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
    Facet("thread", _threads, never, presence),
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
        Setting("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
        Setting("switch interval", sys.getswitchinterval, sys.setswitchinterval),
        # `threading.stack_size` both reads and sets the value.
        Setting("stack size of threads", threading.stack_size, threading.stack_size),
        Setting("dlopen flags", sys.getdlopenflags, sys.setdlopenflags),
        Setting("longest integer text", sys.get_int_max_str_digits, sys.set_int_max_str_digits),
        Setting("dont_write_bytecode", *attribute(sys, "dont_write_bytecode")),
        Setting("sys.path", *in_place(sys.path)),
        Setting("sys.meta_path", *in_place(sys.meta_path)),
        Setting("sys.path_hooks", *in_place(sys.path_hooks)),
        Setting("sys.argv", *in_place(sys.argv)),
    ),
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
