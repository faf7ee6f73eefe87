"""The end of a process that was forked with its imports done: what it had loaded by then is not taken apart.

Clearing torch's modules and running the destructors of its libraries takes 0.2 s in a fork, for copies of pages that nobody
reads again. What was imported and loaded since then ends as in any interpreter.
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
    """What this process has imported and loaded when it is made."""

    def __init__(self) -> None:
        # The interpreter's own are few, and its end asks for some of them.
        own = {"__main__", *sys.stdlib_module_names}
        self._modules = {
            name: module for name, module in sys.modules.items() if name.partition(".")[0] not in own
        }
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001
            finalizer.atexit = False  # torch takes back each of its operators
        leave_before_older_destructors()

    def prepare_end(self) -> None:
        """Do what the interpreter does first when it ends: what is left to it is short. Nothing else is to be run by then."""
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - joins them, and is done with it
        atexit._run_exitfuncs()  # noqa: SLF001
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                _hide(name)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._modules))


def _hide(name: str) -> None:
    """As the interpreter does with all modules: who imports it now is told that it is too late."""
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    modules[name] = None


def leave_before_older_destructors() -> None:
    """What C registers to be done at exit is done from the last one on; when it is our turn, the process is gone.

    Python's own end comes before all of that. torch's destructors take 70 ms.
    """
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # a C library that is not glibc
        for function in (libc._exit, libc.fcloseall):  # noqa: SLF001 - C's own streams are written before
            libc.on_exit(ctypes.cast(function, ctypes.c_void_p), None)
