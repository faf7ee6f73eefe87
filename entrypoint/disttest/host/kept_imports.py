"""A faster end of a process that was forked with its imports done. Modules and libraries loaded before the fork are
not destroyed.

Clearing torch's modules and running the destructors of its libraries takes 0.2 s in a fork, and copies pages that
are never read again. That is a fifth of a small run. Modules imported after the fork end as in any interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import sys
import threading
import weakref
from types import ModuleType


class KeptImports:
    """The modules and libraries that this process had loaded when this object was made."""

    def __init__(self) -> None:
        # Modules of the standard library are few, and the interpreter uses some of them when it ends.
        own = {"__main__", *sys.stdlib_module_names}
        self._modules = {
            name: module for name, module in sys.modules.items() if name.partition(".")[0] not in own
        }
        # `weakref.finalize` has no public way to list or disarm finalizers of other code (Python 3.11 to 3.13):
        # https://github.com/python/cpython/blob/main/Lib/weakref.py
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001
            # torch unregisters each of its operators by such a finalizer.
            finalizer.atexit = False
        leave_before_older_destructors()

    def prepare_end(self) -> None:
        """Run the first steps of the interpreter's shutdown, and skip the old modules in the rest."""
        # No other code must run afterwards. Both are the steps of Py_FinalizeEx, which has no public parts (Python
        # 3.11 to 3.13):
        # https://github.com/python/cpython/blob/main/Python/pylifecycle.c
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                _hide(name)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._modules))


def _hide(name: str) -> None:
    """Mark a module as unavailable, as the interpreter does at its end: importing it now fails with that reason."""
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    modules[name] = None


def leave_before_older_destructors() -> None:
    """End the process before the exit handlers that C libraries registered earlier."""
    # glibc runs its handlers from the last registered to the first, so a handler registered now runs before those of
    # torch, which take 70 ms, and exits there. Python's own shutdown precedes all of them. ``os._exit`` would lose
    # the data that files have buffered.
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # a C library other than glibc
        # glibc 2.36: fcloseall writes the buffered data of C streams, and _exit is POSIX despite its name.
        for function in (libc._exit, libc.fcloseall):  # noqa: SLF001
            libc.on_exit(ctypes.cast(function, ctypes.c_void_p), None)
