"""The layer, put into torch and taken out again."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from disttest.observe import hub
from disttest.observe.tool import Tool

if TYPE_CHECKING:
    from disttest.observe.kernels import Kernels
    from disttest.observe.patches import Patches

BLIND_SPOTS = (
    "calls on a Backend object, past its process group",
    "symmetric memory and torchcomms",
    "RPC, whose calls are no collectives (waits for its futures are seen)",
    "waits in C++: the end of DDP's backward pass, constructors, coalesced works",
    "which reduction a call of C++ asks for, unless it is a functional collective",
    "processes that are started as new programs",
)
"""What the layer does not see with any version of torch."""

_hooks: tuple[Kernels, Patches] | None = None


def install(*tools: Tool) -> None:
    """Put the layer into torch, unless it is there, and add tools to it.

    A process that forks others saves them the cost if it does so first (or :func:`prepare`). Tools are of the process
    that has added them: a fork of it begins without.

    Args:
        tools: to be told, besides those that are there.
    """
    global _hooks  # torch is one per process
    if _hooks is None:
        from disttest.observe.kernels import Kernels
        from disttest.observe.patches import Patches

        _hooks = Kernels(), Patches()
        os.register_at_fork(after_in_child=lambda: hub.set_tools(()))
    hub.set_tools((*hub.tools(), *tools))


def prepare() -> None:
    """Find in torch what the layer needs, and leave torch as it was: :func:`install` then takes 0.6 ms instead of 10.

    A process that forks many pays for it once; where there is no torch.distributed, nothing happens.
    """
    dist = sys.modules.get("torch.distributed")
    if _hooks is None and dist is not None and dist.is_available():
        install()
        uninstall()


def uninstall() -> None:
    """Take the tools away, and the layer out of torch."""
    global _hooks  # torch is one per process
    hub.set_tools(())
    if _hooks is not None:
        for hooks in reversed(_hooks):
            hooks.remove()
        _hooks = None


@contextlib.contextmanager
def observing(*tools: Tool) -> Iterator[None]:
    """Tools that are told of what happens inside, in all threads of this process."""
    before, was_there = hub.tools(), _hooks is not None
    install(*tools)
    try:
        yield
    finally:
        hub.set_tools(before)
        if not was_there:
            uninstall()


def gaps() -> tuple[str, ...]:
    """What cannot be seen in this process, since this version of torch lacks a hook or calls came out otherwise than expected."""
    return hub.gaps()
