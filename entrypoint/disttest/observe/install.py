"""Installation of the layer into torch, and its removal."""

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
    "RPC, whose calls are not collectives (waits for its futures are seen)",
    "waits in C++: the end of DDP's backward pass, constructors, coalesced works",
    "waits for a GPU other than item(), cpu(), to(), tolist() and synchronize()",
    "which reduction a call of C++ asks for, unless it is a functional collective",
    "processes that are started as new programs",
    "operations inside a kernel that Inductor has compiled, in threads that ran before their observer, and on storages",
)
"""Calls and waits that the layer cannot observe in any version of torch."""

_hooks: list[Kernels | Replacements] = []
_watching: Watching | None = None


# A library of the core, not a plugin: several plugins and packages of users look at collectives at the same time.
# docs/decisions/0002-observe-is-a-library.md
def install(*tools: Tool) -> None:
    """Install the layer into torch if it is not there, and add tools.

    A process that forks others saves them the cost by calling this first (or :func:`prepare`). Tools belong to the
    process that added them: a fork starts without tools.

    Args:
        tools: tools to notify in addition to those already registered.
    """
    if not _hooks:
        from disttest.observe.kernels import Kernels
        from disttest.observe.patches import Patches
        from disttest.observe.queues import Queues

        hub.queues = Queues()
        _hooks.extend((Kernels(), Patches(), hub.queues))
        # Python cannot remove such a callback. After a further installation it runs twice, without effect.
        os.register_at_fork(after_in_child=lambda: hub.set_tools(()))
    _set_tools((*hub.tools(), *tools))


def _set_tools(tools: Sequence[Tool]) -> None:
    """Register the tools; patch what is needed for operations only if a tool implements ``on_op``."""
    global _watching  # one torch per process
    hub.set_tools(tools)
    if hub.listens("on_op") and _watching is None:
        from disttest.observe.watching import Watching

        _watching = Watching()
    elif _watching is not None and not hub.listens("on_op"):
        _watching.remove()
        _watching = None


def prepare() -> None:
    """Look up in torch what the layer needs, and restore torch: :func:`install` then takes 0.6 ms instead of 10."""
    # A process that forks many others pays for it once. Without torch.distributed, nothing happens.
    dist = sys.modules.get("torch.distributed")
    if not _hooks and dist is not None and dist.is_available():
        install()
        uninstall()


def uninstall() -> None:
    """Remove the tools, and the layer from torch."""
    _set_tools(())
    while _hooks:
        # In reverse order, so that a function that was replaced twice gets its original back.
        _hooks.pop().remove()
    hub.queues = None


def watching_operations() -> ModuleType:
    """Return the module whose ``ask`` and ``leave`` switch ``on_op`` notifications for a tool; it needs torch."""
    from disttest.observe import watching

    return watching


def is_watching() -> bool:
    """Return whether the layer's mode is on this thread's stack of dispatch modes, among those of others."""
    return _watching is not None and watching_operations().is_watched()


def is_of_observer(function: object) -> bool:
    """Return whether the layer has installed this function in torch, which may happen in the middle of a test."""
    module = getattr(function, "__module__", None)
    return isinstance(module, str) and module.startswith(__package__ + ".")


@contextlib.contextmanager
def observing(*tools: Tool) -> Iterator[None]:
    """Notify tools inside the block, in all threads of this process."""
    before, was_there = hub.tools(), bool(_hooks)
    install(*tools)
    try:
        yield
    finally:
        _set_tools(before)
        if not was_there:
            uninstall()


def store_calls() -> int | None:
    """Return the number of observed calls of stores from Python; None without the layer."""
    # Only a change between two results is meaningful: concurrent threads may count two calls as one.
    return hub.store_calls() if _hooks else None


def gaps() -> tuple[str, ...]:
    """Return descriptions of calls that cannot be observed: torch lacks a hook, or a call had an unexpected form."""
    return hub.gaps()
