"""Modules that this process has imported: their use if they are there, their end, and their byte code."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from disttest.limits import SETTLED_SOURCE_S

_GRAPHS = "torch._inductor.cudagraph_trees"
"""Module that ``torch._dynamo.reset`` imports where CUDA is available: five hundred modules in each rank, a second of
CPU time, to reset state that only that module can have created.
"""


def loaded(name: str) -> Any:
    """Return the module if its import is complete; otherwise None."""
    # A thread may be importing it: NCCL's watchdog imports ``torch._dynamo`` when it finds an error. The module is in
    # ``sys.modules`` then, without most of its names.
    module = sys.modules.get(name)
    return None if isinstance(module, ModuleType) and _is_being_imported(module) else module


# `_initializing` is how importlib itself marks a module whose import is not complete.
def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def reset_compiler() -> None:
    """Discard compiled code, if there is any."""
    if dynamo := loaded("torch._dynamo"):
        with replaced_entry(sys.modules, _GRAPHS, _Nothing(_GRAPHS)):
            dynamo.reset()


@contextmanager
def replaced_entry(names: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """Define a name while the context is open, unless it is defined; a value that replaces it meanwhile stays."""
    mine = names.setdefault(name, value) is value
    try:
        yield
    finally:
        if mine and names.get(name) is value:
            del names[name]


class _Nothing(ModuleType):
    """A module whose functions all do nothing."""

    def __getattr__(self, name: str) -> Callable[[], None]:
        # The import system and `inspect` read `__path__`, `__spec__` and others, and would use the function below.
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda: None


class KeptImports:
    """The modules and libraries that this process had loaded when this object was made. Its end does not destroy them.

    Clearing torch's modules and running the destructors of its libraries takes 0.2 s in a fork, and copies pages that
    are never read again. That is a fifth of a small run. Modules imported after the fork end as in any interpreter.
    """

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
        # The interpreter clears each module that it finds in `sys.modules`. An entry of None hides a module
        # from it (`finalize_modules`).
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                _hide(name)
        # One reference too many, so that these modules are not freed together with this object.
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
    # `on_exit` passes the exit status as the first argument, which `_exit` needs and `atexit` lacks.
    # `fcloseall` is registered last, so it runs first.
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # a C library other than glibc
        # glibc 2.36: fcloseall writes the buffered data of C streams, and _exit is POSIX despite its name.
        for function in (libc._exit, libc.fcloseall):  # noqa: SLF001
            libc.on_exit(ctypes.cast(function, ctypes.c_void_p), None)


def keep_only_of_settled_sources() -> None:
    """Stop this process and its forks from writing byte code of sources that were saved in the last seconds."""
    # Python accepts kept byte code for any source with the same modification second and the same size. An edit can
    # follow a run within that second. Keeping none at all would have each run compile its modules and pytest rewrite
    # each plugin again: 0.3 of 0.87 s with 22,000 lines and eight plugins.
    # pytest's writer is private (pytest 8.4 to 9.2), and importlib's has no setting for this (Python 3.11 to 3.13).
    rewrite = loaded("_pytest.assertion.rewrite")
    write_rewritten = getattr(rewrite, "_write_pyc", None)
    # A pytest without this function: its byte code cannot be controlled, so none is kept.
    if write_rewritten is None:
        sys.dont_write_bytecode = True
        return
    setattr(rewrite, "_write_pyc", _looked_after(write_rewritten))  # noqa: B010 - no module for mypy
    SourceFileLoader.set_data = _set_data(SourceFileLoader.set_data)  # type: ignore[method-assign]


def is_settled(source: str) -> bool:
    """Return whether a file was saved so long ago that a later save gets another time stamp."""
    with contextlib.suppress(OSError):
        # the clock of the file system; called for each module of a run
        age_s = time.time() - os.stat(source).st_mtime  # noqa: TID251, PTH116
        return age_s >= SETTLED_SOURCE_S
    return False


def _looked_after(write: Callable[..., bool]) -> Callable[..., bool]:
    """Wrap pytest's writer of rewritten modules."""

    def write_settled(state: Any, code: CodeType, *rest: Any) -> bool:
        return is_settled(code.co_filename) and write(state, code, *rest)

    return write_settled


def _set_data(write: Callable[..., None]) -> Callable[..., None]:
    """Wrap importlib's writer of byte code."""

    def set_data(loader: SourceFileLoader, path: str, data: bytes, **more: Any) -> None:
        if is_settled(_source_of(path)):
            write(loader, path, data, **more)

    return set_data


def _source_of(byte_code: str) -> str:
    with contextlib.suppress(ValueError):
        return importlib.util.source_from_cache(byte_code)
    return ""
