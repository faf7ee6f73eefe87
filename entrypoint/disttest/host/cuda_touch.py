"""Keep CUDA uninitialised in the process that forks ranks, and record code that initialises it all the same.

Once a process has asked CUDA anything, no fork of it can use a GPU ("Cannot re-initialize CUDA in forked
subprocess"). ``HAS_GPU = torch.cuda.is_available()`` in a test module is enough. There are two remedies. torch can
answer that question through NVML, which initialises nothing. Any code that initialises CUDA nevertheless is
recorded with its line, so that the message of a failing rank can name it.

See "Poison fork in multiprocessing" in https://docs.pytorch.org/docs/stable/notes/multiprocessing.html, and
https://github.com/pytorch/pytorch/pull/85951 for torch's question to NVML.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Variable that has torch count GPUs through NVML; see "Poison fork in multiprocessing" in torch's notes."""

_COUNT = "_cuda_getDeviceCount"
_TOUCHING = ("_cuda_init", _COUNT, "_cuda_getArchFlags")
"""Functions of ``torch._C`` through which torch's Python code reaches CUDA. Each makes forks unusable."""

BESIDE_TORCH = "another library than torch"

_DRIVER = "libcuda.so.1"
_NOT_INITIALIZED = 3
"""``CUDA_ERROR_NOT_INITIALIZED``, which each function of the driver returns before ``cuInit``."""

_NOT_THE_USERS = ("/_pytest/", "/pluggy/", "/disttest/", "<frozen ")

_is_ours = False
_touched = ""
_originals: dict[str, Any] = {}


def check_by_nvml() -> Callable[[], None]:
    """Have torch count GPUs without initialising CUDA in this process; return the function that undoes it."""
    # A value that the user has set stays. NVML lists devices, but does not say whether CUDA works. Ranks and ordinary
    # tests therefore get torch's own check back, as torch's default has it:
    # https://github.com/pytorch/pytorch/pull/85024
    global _is_ours
    environ = os.environ  # noqa: TID251  # torch reads it at each question
    if _BY_NVML in environ:
        return lambda: None
    environ[_BY_NVML] = "1"
    _is_ours = True

    def undo() -> None:
        global _is_ours
        environ.pop(_BY_NVML, None)
        _is_ours = False

    return undo


def is_checked_by_nvml() -> bool:
    """Return whether disttest, and not the user, has set the variable."""
    return _is_ours


def forget_check_by_nvml() -> None:
    """Remove the variable that was inherited from another disttest process."""
    os.environ.pop(_BY_NVML, None)  # noqa: TID251


def watch_cuda(prepare: Mapping[str, Callable[[Any], None]]) -> None:
    """Record code that touches CUDA in this process, from now on or as soon as torch is imported.

    Args:
        prepare: name of a module, mapped to a function that is called with the module once it is loaded.
    """

    def watch_torch(torch: Any) -> None:
        _wrap(torch)
        if "torch" in prepare:
            prepare["torch"](torch)

    wanted = {**prepare, "torch": watch_torch}
    for name in wanted.keys() & sys.modules.keys():
        prepare_now, module = wanted.pop(name), sys.modules[name]
        if module is not None:  # None means that its import is forbidden
            prepare_now(module)
    if wanted and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(wanted))


def unwatch_cuda() -> None:
    """Restore torch's own functions: this process may use CUDA."""
    global _touched
    _touched = ""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name, original in _originals.items():
        # Only these functions of C see every call, because torch.cuda reads them at each call (torch 2.9 to 2.15).
        setattr(sys.modules["torch"]._C, name, original)  # noqa: SLF001
    _originals.clear()


def cuda_touched() -> str:
    """Return the first call that touched CUDA, as ``torch.cuda.is_available at test_step.py:3``; empty if none."""
    return _touched


def is_driver_initialised() -> bool:
    """Return whether torch or another library has initialised CUDA in this process."""
    # The question initialises nothing.
    try:
        # Threads of libcuda do not show it: on a real GPU, NVML alone left such a thread in the controller, and
        # forks worked. numba initialised the driver without going through torch.
        count = ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).cuDeviceGetCount
    except (OSError, AttributeError):  # not loaded, or another library of that name
        return False
    return bool(count(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED)


def _has_driver() -> bool:
    """Return whether a driver can be loaded."""
    # torch asks here only if NVML, which is part of the driver, has not answered.
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


class _Finder:
    """A finder that passes modules on once they are executed."""

    # Finding a module does not always lead to its execution.

    def __init__(self, wanted: Mapping[str, Callable[[Any], None]]) -> None:
        self._wanted = wanted
        self._asked: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a wanted module, from the finders behind this one."""
        del path, target
        # `find_spec` below asks all finders of `sys.meta_path`, this one included.
        if name not in self._wanted or name in self._asked:
            return None
        self._asked.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asked.remove(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._wanted[name](module)

            # The path finder makes a new loader for each spec, so this changes the import of one module only.
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _wrap(torch: Any) -> None:
    for name in _TOUCHING:
        # Only these functions of C see every call, because torch.cuda reads them at each call (torch 2.9 to 2.15).
        original = getattr(torch._C, name, None)  # noqa: SLF001
        if original is not None and name not in _originals:  # torch's CPU build has none of them
            _originals[name] = original
            noting = _noting(original)
            of_nvidia = name == _COUNT and torch.version.cuda is not None  # ROCm builds use the same names
            setattr(torch._C, name, _counting(noting) if of_nvidia else noting)  # noqa: SLF001


def _counting(original: Callable[[], int]) -> Callable[[], int]:
    """Wrap the count of GPUs: without a driver it is 0, and CUDA is not asked."""
    # Asking CUDA would make forks unusable: https://github.com/pytorch/pytorch/pull/15782. A rank that needs a GPU would
    # then report that CUDA cannot be used in forks, and not that there is no driver.

    def count() -> int:
        return original() if _has_driver() else 0

    return count


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        global _touched
        if not _touched:
            # Asked before the original call, which initialises the driver itself.
            before = f"{BESIDE_TORCH}, before " if is_driver_initialised() else ""
            # inspect.currentframe has no depth, and inspect.stack reads source files (Python 3.11 to 3.13).
            _touched = before + _name_caller(sys._getframe(1))  # noqa: SLF001
        return original(*args, **kwargs)

    return call


def _name_caller(frame: FrameType | None) -> str:
    """Name the nearest line of the user's code and the function of torch that it called, or torch's own line."""
    called = place = ""
    torch = f"{Path(sys.modules['torch'].__file__ or '').parent}{os.sep}"
    while frame is not None:
        file = frame.f_code.co_filename
        is_torch = file.startswith(torch)
        if not is_torch and not any(part in file for part in _NOT_THE_USERS):
            return f"{called} at {Path(file).name}:{frame.f_lineno}"
        if is_torch:
            module = str(frame.f_globals.get("__name__", "torch"))
            name = frame.f_code.co_name
            called = module if name == "<module>" else f"{module}.{name}"
            place = place or f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return f"{called} at {place}" if called else "an extension module"
