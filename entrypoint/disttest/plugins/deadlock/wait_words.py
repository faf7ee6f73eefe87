"""Names of waits, in terms of the calls in the test's code."""

from __future__ import annotations

from disttest.model import group_title
from disttest.observe.operations import title_of
from disttest.observe.records import ANY_SOURCE, WaitKind
from disttest.plugins.deadlock.layout import Direction
from disttest.plugins.deadlock.snapshot import GroupKey, GroupState, Waiting


def group_name(group: GroupKey, state: GroupState | None) -> str:
    """Return ``default``, the description given by the creator, or number and ranks of the group."""
    return group_title(group.name, state.description if state else "", group.ranks)


def wait_name(wait: Waiting, group: str) -> str:
    """Name a wait: ``all_reduce #3``, ``all_reduce #3 of group pairs``, ``recv #1 from rank 0``, ``key 'ready' of a store``."""
    if wait.kind is WaitKind.DEVICE:
        issued = f" since {wait.keys}" if wait.keys not in ("", wait.where) else ""
        return f"{_call(wait, group)} (in the queue of its GPU{issued})"
    if wait.op:
        return _call(wait, group)
    if wait.kind is WaitKind.STORE:
        return f"key{'s' if ', ' in wait.keys else ''} {wait.keys!r} of a store"
    return making_name(wait.keys, wait.name)


def making_name(ranks: str, name: str) -> str:
    """Name a group under construction: ``new_group(0-1) as group #2``."""
    return f"new_group({ranks}) as group #{name}" if name.isdecimal() else f"new_group({ranks})"


def _call(wait: Waiting, group: str) -> str:
    if wait.peer is not None:
        return _p2p_name(wait, group)
    return f"{title_of(wait.op)} #{wait.seq}{of_group(group)}"


def of_group(group: str) -> str:
    """The words for a group; none for the default group, which most calls use."""
    return "" if group == "default" else f" of group {group}"


def _p2p_name(wait: Waiting, group: str) -> str:
    other = "any rank" if wait.peer == ANY_SOURCE else f"rank {wait.peer}"
    way = "to" if wait.direction is Direction.SEND else "from"
    tag = f" with tag {wait.tag}" if wait.tag else ""
    return f"{title_of(wait.op)} #{wait.seq} {way} {other}{tag}{of_group(group)}"
