"""Waits of this rank: the plugins that watch them, and the core's own records."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from disttest import observe
from disttest.plugin_manager import blaming, plugin_manager
from disttest.runtime.rank.broken_groups import BrokenGroups


class WatchedRank:
    """A plugin's part in a watched rank. A plugin overrides the methods that it needs."""

    def begin(self) -> None:
        """A test begins."""

    def awaited(self) -> tuple[int, ...]:
        """Return the ranks that had not joined the call whose wait failed last."""
        return ()

    def leave(self) -> None:
        """A rank that a class started is about to end."""


# Plugin name -> its part in this rank.
_parts: dict[str, WatchedRank] = {}
_broken: BrokenGroups | None = None


def watch_waits(watches: Mapping[str, Any], place: int, *, is_reused: bool = False) -> None:
    """Let plugins observe this rank from now on.

    Args:
        watches: plugin name -> data for its part here. Without any, or without torch, the rank is not observed, which
            saves 3 ms.
        place: index of this rank among those of its world.
        is_reused: whether the process runs several tests, so that one can break the groups of the next.
    """
    global _broken  # a process is one rank
    dist = sys.modules.get("torch.distributed")
    if not watches or dist is None or not dist.is_available():
        return
    _parts.update(plugin_manager().named("disttest_join_watch", WatchedRank, place=place, data=watches))
    # A process that runs one test cannot pass a broken group on.
    _broken = BrokenGroups() if is_reused else None
    observe.install(*filter(None, [_broken]))


def begin_waits() -> None:
    """Start a new test."""
    for name, part in _parts.items():
        with blaming(name, "disttest_join_watch"):
            part.begin()
    if _broken is not None:
        _broken.begin()


def broken_groups() -> tuple[str, ...]:
    """Describe groups that still exist and that the test made unusable for the next one."""
    return _broken.living() if _broken is not None else ()


def awaited_ranks() -> tuple[int, ...]:
    """Return the ranks that had not joined the call whose wait failed last."""
    found: list[int] = []
    for name, part in _parts.items():
        with blaming(name, "disttest_join_watch"):
            found += part.awaited()
    return tuple(found)


def leave_waits() -> None:
    """Notify plugins that the rank is about to end."""
    for name, part in _parts.items():
        with blaming(name, "disttest_join_watch"):
            part.leave()
