"""Waits of this rank: the plugins that watch them, and the core's own records.

Failed waits and aborts close the connections of a process group and so break it for the next test. Calls that only some
ranks make break nothing within one rank; a plugin that compares the ranks finds those.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from disttest import observe
from disttest.observe import Group, Tool, Wait, WaitKind
from disttest.observe.groups import living_groups
from disttest.plugin_manager import blaming, plugin_manager


class BrokenGroups(Tool):
    """The failed waits of the running test in this rank."""

    def __init__(self) -> None:
        """Start without any failed waits."""
        self.begin()

    def begin(self) -> None:
        """Forget the waits of the previous test."""
        # Number of the call or the wait, or name of the aborted group -> name of the group (empty if unknown),
        # and the text of the note.
        self._failed: dict[int | str, tuple[str, str]] = {}

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Record a failed wait; a later wait for the same call may succeed."""
        call = wait.call
        if error is None:
            if self._failed and call is not None:
                # The failed wait may have had a shorter time limit. A wait that succeeded proves that the
                # connection works.
                self._failed.pop(call.n, None)
        elif call is not None:
            self._failed[call.n] = (
                call.group.name,
                f"{call.op} at {call.site}, which failed in {_name(call.group)}",
            )
        elif wait.kind is WaitKind.WORK:
            # Calls and waits are numbered apart, both from 1. Negative keys keep them from replacing each other.
            self._failed[-wait.n] = "", f"the wait at {wait.site}, which failed"
        elif wait.kind is WaitKind.GROUP and wait.ranks:
            # torch numbers new groups; after this failure the ranks may have counted differently.
            self._failed[-wait.n] = "", f"the group at {wait.site}, which could not be made"

    def on_group(self, group: Group, *, made: bool) -> None:
        """Forget a destroyed group: the next test cannot use it."""
        if not made:
            self._failed = {n: each for n, each in self._failed.items() if each[0] != group.name}

    def on_abort(self, group: Group) -> None:
        """Record a group that has lost its connections."""
        self._failed[group.name] = group.name, f"{_name(group)}, which was aborted"

    def living(self) -> tuple[str, ...]:
        """List the notes on groups that still exist after the test."""
        alive = {*living_groups().values()} if self._failed else ()
        words = (words for name, words in self._failed.values() if not name or name in alive)
        return tuple(dict.fromkeys(words))


def _name(group: Group) -> str:
    return f"group {group.description or group.name}"


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
