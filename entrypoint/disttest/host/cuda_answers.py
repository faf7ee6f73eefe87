"""Answers to torch's questions about CUDA devices, in a process that must not initialise CUDA: a fork of it asks.

Many test modules have ``torch.cuda.get_device_capability() >= (8, 0)`` at the top. torch's own
``common_device_type``, which all of its test classes import in ``setUp``, asks as well. If CUDA itself answered, no
fork of this process could use a GPU (https://github.com/pytorch/pytorch/issues/83973).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import msgspec

from disttest.host.fork_hazard import ask_fork, fork_hazard
from disttest.limits import CUDA_ANSWER_S

Facts = dict[str, bool | int | str | None]
"""Name of a property, mapped to its value; None if a fork cannot pass the value on."""

_answering = False
_asked: dict[str, list[Facts]] = {}
"""Value of CUDA_VISIBLE_DEVICES, mapped to the known facts of each device."""


class DeviceProperties:
    """Stand-in for the result of ``torch.cuda.get_device_properties``."""

    # Values that a fork cannot pass on are read from CUDA.

    def __init__(self, facts: Facts, read: Callable[[], Any]) -> None:
        self._facts = facts
        self._read = read

    def __getattr__(self, name: str) -> Any:
        if name not in self._facts:  # pytest looks up its own attributes on every object of a module
            raise AttributeError(name)
        value = self._facts[name]
        return getattr(self._read(), name) if value is None else value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._facts.items())})"


def answer_for_cuda(torch: Any) -> None:
    """Replace torch's questions about devices, so that they do not initialise CUDA in this process."""
    global _answering
    _answering = True
    # `__wrapped__` is there if the functions are replaced already.
    if torch.version.cuda is None or hasattr(torch.cuda.current_device, "__wrapped__"):
        return
    # Both initialise CUDA although NVML knows the answers, and torch has no setting for it (torch 2.9 to 2.15).
    torch.cuda.current_device = _answered_current_device(torch, torch.cuda.current_device)
    torch.cuda.get_device_properties = _answered_properties(torch, torch.cuda.get_device_properties)


def leave_answers_to_cuda(torch: Any) -> None:
    """Restore torch's own functions. Replacements that modules imported meanwhile only pass questions on."""
    global _answering
    _answering = False
    # As above (torch 2.9 to 2.15).
    for name in ("current_device", "get_device_properties"):
        ours = getattr(torch.cuda, name)
        setattr(torch.cuda, name, getattr(ours, "__wrapped__", ours))


def answer_for_numba(cuda: Any) -> None:
    """Replace ``numba.cuda.is_available()``, so that it does not initialise CUDA either."""
    # torch's test classes call it wherever numba is installed (torch 2.9 to 2.15). CuPy and JAX are not covered: a test
    # module that asks them is named instead.
    original = getattr(cuda, "is_available", None)
    if original is None:
        return

    @functools.wraps(original)
    def is_available() -> bool:
        answer = b""
        if _may_ask_fork():
            answer, _ended = ask_fork(lambda: b"yes" if original() else b"no", limit_s=CUDA_ANSWER_S)
        return answer == b"yes" if answer else original()

    cuda.is_available = is_available


def _answered_current_device(torch: Any, original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def current_device() -> int:
        return 0 if _known(torch) else original()  # only CUDA itself can select another device

    return current_device


def _answered_properties(torch: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_device_properties(device: Any = None) -> Any:
        known = _known(torch)
        # torch has no public function for it (torch 2.9 to 2.15):
        # https://github.com/pytorch/pytorch/blob/main/torch/cuda/_utils.py
        index = torch.cuda._utils._get_device_index(device, optional=True) if known else -1  # noqa: SLF001
        if not 0 <= index < len(known):
            return original(device)
        return DeviceProperties(known[index], lambda: original(device))

    return get_device_properties


def _known(torch: Any) -> list[Facts]:
    """Return the facts of each device; empty if CUDA itself must be asked."""
    if not _may_ask_fork():
        return []
    # a world sees other devices than the run
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")  # noqa: TID251
    if visible not in _asked:
        # A failed answer is kept, too: CUDA itself answers from then on, and the user sees its own error.
        _asked[visible] = _ask(torch)
    return _asked[visible]


def _may_ask_fork() -> bool:
    """Return whether questions are answered here, and a fork of this process could use a GPU."""
    # With a hazard a fork is unsafe or cannot ask CUDA, and no rank that uses a GPU is forked from here any
    # more.
    return _answering and not fork_hazard(on_gpus=True)


def _ask(torch: Any) -> list[Facts]:
    answer, _ended = ask_fork(lambda: _answer(torch), limit_s=CUDA_ANSWER_S)
    try:
        return msgspec.json.decode(answer, type=list[Facts])
    except msgspec.DecodeError:
        return []


def _answer(torch: Any) -> bytes:
    # The fork has inherited the replacements, which would ask a fork once more.
    leave_answers_to_cuda(torch)
    count = torch.cuda.device_count()
    return msgspec.json.encode([_facts(torch.cuda.get_device_properties(i)) for i in range(count)])


def _facts(properties: Any) -> Facts:
    values = ((name, getattr(properties, name)) for name in dir(properties) if not name.startswith("_"))
    return {name: value if isinstance(value, bool | int | str) else None for name, value in values}
