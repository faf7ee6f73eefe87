"""The layer, put into torch and taken out again."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from disttest.observe import hub
from disttest.observe.tool import Tool

if TYPE_CHECKING:
    from disttest.observe.kernels import Kernels
    from disttest.observe.replacing import Replacements
    from disttest.observe.watching import Watching

BLIND_SPOTS = (
    "calls on a Backend object, past its process group",
    "symmetric memory and torchcomms",
    "RPC, whose calls are no collectives (waits for its futures are seen)",
    "waits in C++: the end of DDP's backward pass, constructors, coalesced works",
    "waits for a GPU other than item(), cpu(), to(), tolist() and synchronize()",
    "which reduction a call of C++ asks for, unless it is a functional collective",
    "processes that are started as new programs",
    "operations inside a kernel that Inductor has compiled, in threads that ran before their observer, and on storages",
)
"""What the layer does not see with any version of torch."""

_hooks: list[Kernels | Replacements] = []
_watching: Watching | None = None


def install(*tools: Tool) -> None:
    """Put the layer into torch, unless it is there, and add tools to it.

    A process that forks others saves them the cost if it does so first (or :func:`prepare`). Tools are of the process
    that has added them: a fork of it begins without.

    Args:
        tools: to be told, besides those that are there.
    """
    if not _hooks:
        from disttest.observe.kernels import Kernels
        from disttest.observe.patches import Patches
        from disttest.observe.queues import Queues

        hub.queues = Queues()
        _hooks.extend((Kernels(), Patches(), hub.queues))
        os.register_at_fork(after_in_child=lambda: hub.set_tools(()))
    _set_tools((*hub.tools(), *tools))


def _set_tools(tools: Sequence[Tool]) -> None:
    """Tell these, and have replaced what only those need that are told of operations."""
    global _watching  # torch is one per process
    hub.set_tools(tools)
    if hub.listens("on_op") and _watching is None:
        from disttest.observe.watching import Watching

        _watching = Watching()
    elif _watching is not None and not hub.listens("on_op"):
        _watching.remove()
        _watching = None


def prepare() -> None:
    """Find in torch what the layer needs, and leave torch as it was: :func:`install` then takes 0.6 ms instead of 10.

    A process that forks many pays for it once; where there is no torch.distributed, nothing happens.
    """
    dist = sys.modules.get("torch.distributed")
    if not _hooks and dist is not None and dist.is_available():
        install()
        uninstall()


def uninstall() -> None:
    """Take the tools away, and the layer out of torch."""
    _set_tools(())
    while _hooks:
        _hooks.pop().remove()
    hub.queues = None


def watching_operations() -> ModuleType:
    """The module with ``ask`` and ``leave``, by which a tool is told of operations on tensors (``on_op``); needs torch."""
    from disttest.observe import watching

    return watching


def is_watching() -> bool:
    """Whether a mode of ours is on this thread's stack of dispatch modes, beside those of others."""
    return _watching is not None and watching_operations().is_watched()


def is_of_observer(function: object) -> bool:
    """Whether the layer has put it in the place of a function of torch's, as it may in the middle of a test."""
    module = getattr(function, "__module__", None)
    return isinstance(module, str) and module.startswith(__package__ + ".")


@contextlib.contextmanager
def observing(*tools: Tool) -> Iterator[None]:
    """Tools that are told of what happens inside, in all threads of this process."""
    before, was_there = hub.tools(), bool(_hooks)
    install(*tools)
    try:
        yield
    finally:
        _set_tools(before)
        if not was_there:
            uninstall()


def store_calls() -> int | None:
    """How often stores were called from Python in this process, as far as it was to be seen; None without the layer.

    It says no more than whether there were any since it was asked before: threads may count two as one.
    """
    return hub.store_calls() if _hooks else None


def gaps() -> tuple[str, ...]:
    """What cannot be seen in this process, since this version of torch lacks a hook or calls came out otherwise than expected."""
    return hub.gaps()
