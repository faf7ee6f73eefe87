"""The waits of this rank: the parts of plugins that watch them, and what the core notes of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from disttest import observe
from disttest.plugin_manager import blaming, plugin_manager
from disttest.runtime.rank.broken_groups import BrokenGroups
from disttest.runtime.rank.facets.process_groups import names_of_groups
from disttest.runtime.rank.gloo_loops import CalmGlooLoops


class WatchedRank:
    """A plugin's part in a rank that its watch looks at. A plugin overrides the methods that it needs."""

    def begin(self) -> None:
        """A test begins."""

    def awaited(self) -> tuple[int, ...]:
        """Return the ranks that had not joined the last call whose wait has failed."""
        return ()

    def leave(self) -> None:
        """A rank that a class has started is about to end."""


# Name of a plugin -> its part in this rank.
_parts: dict[str, WatchedRank] = {}
_broken: BrokenGroups | None = None


def watch_waits(watches: Mapping[str, Any], place: int, *, is_reused: bool = False) -> None:
    """From here on plugins observe this rank.

    Args:
        watches: name of a plugin that watches the ranks -> data for its part here. Without any, this rank is not observed
            at all, which saves it 3 ms; so it is without torch.
        place: of this rank among those of its world.
        is_reused: the process runs several tests, so that one can break the groups of the next.
    """
    global _broken  # a process is one rank
    dist = sys.modules.get("torch.distributed")
    if not watches or dist is None or not dist.is_available():
        return
    _parts.update(plugin_manager().named("disttest_join_watch", WatchedRank, place=place, data=watches))
    _broken = BrokenGroups() if is_reused else None
    observe.install(CalmGlooLoops(), *filter(None, [_broken]))


def begin_waits() -> None:
    """A test begins."""
    for name, part in _parts.items():
        with blaming(name, "disttest_join_watch"):
            part.begin()
    if _broken is not None:
        _broken.begin()


def broken_groups() -> tuple[str, ...]:
    """Notes on groups that are still alive, and that the test made unusable for the next one."""
    return _broken.among(names_of_groups()) if _broken is not None else ()


def awaited_ranks() -> tuple[int, ...]:
    """The ranks that had not joined the last call whose wait has failed."""
    found: list[int] = []
    for name, part in _parts.items():
        with blaming(name, "disttest_join_watch"):
            found += part.awaited()
    return tuple(found)


def leave_waits() -> None:
    """The rank is about to end."""
    for name, part in _parts.items():
        with blaming(name, "disttest_join_watch"):
            part.leave()
