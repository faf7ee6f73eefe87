"""Process groups as records, and the numbers of the calls issued in each."""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from disttest.observe.records import Call, Group

if TYPE_CHECKING:
    import torch.distributed as dist


_HOST_WAITS = frozenset({"fake", "gloo", "mpi"})
"""Backends whose handles make the host wait, on any device."""


class KnownGroup:
    """A group in use by this process, with counters for its calls."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.shortest_s = _for_ever(group.timeout_s)
        """The shortest time limit that the group has had."""
        self.collectives = itertools.count(1)
        self.p2p: defaultdict[tuple[str, int, int], Iterator[int]] = defaultdict(lambda: itertools.count(1))
        """Counters by operation, peer and tag."""


# Weak: the layer must not keep a group alive that the test has dropped.
_known: WeakKeyDictionary[dist.ProcessGroup, KnownGroup] = WeakKeyDictionary()
destroyed = 0
"""Number of known groups that were destroyed."""


def known(pg: dist.ProcessGroup) -> KnownGroup:
    """Return the entry of a group; it is created when the group is first used."""
    found = _known.get(pg)
    if found is None:
        found = _known[pg] = KnownGroup(_describe(pg, _ranks(pg)))
    return found


def note_made(pg: dist.ProcessGroup, ranks: tuple[int, ...]) -> Group:
    """Record a new group.

    Args:
        pg: its process group.
        ranks: its ranks in the default group; empty for the default group itself.
    """
    _known[pg] = made = KnownGroup(_describe(pg, ranks or tuple(range(pg.size()))))
    return made.group


def forget(pg: Any) -> Group | None:
    """Drop a destroyed group; return its record if it was made or used while the layer was installed."""
    global destroyed  # a process is one rank
    destroyed += 1
    found = _known.pop(pg, None)
    return found.group if found else None


def renew_timeouts() -> None:
    """Read all time limits again after one has changed. Call numbers continue."""
    # A copy: another thread may make a group, or the garbage collector may remove one.
    for pg, found in list(_known.items()):
        found.group = _describe(pg, found.group.ranks)
        found.shortest_s = min(found.shortest_s, _for_ever(found.group.timeout_s))


def limit_of(call: Call) -> float | None:
    """Return the shortest time after which a wait for a call may give up; None if torch does not report it."""
    # Gloo gives a wait for an earlier message the limit that the group has when the wait begins.
    # The shortest limit that the group has ever had counts, also for calls from before a change.
    names = (each.shortest_s for each in list(_known.values()) if each.group.name == call.group.name)
    limit_s = min(_for_ever(call.timeout_s), *names, float("inf"))
    return None if math.isinf(limit_s) else limit_s


def _for_ever(timeout_s: float | None) -> float:
    return float("inf") if timeout_s is None else timeout_s


def _describe(pg: dist.ProcessGroup, ranks: tuple[int, ...]) -> Group:
    # torch keeps its groups in the private `_world` (torch 2.9 to 2.15), and public functions raise for groups that
    # are not in it:
    # https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py
    description = pg.group_desc
    return Group(
        name=pg.group_name,
        # torch's words for the default group, and for a group whose creator gave no description.
        description={"default_pg": "default", "undefined": ""}.get(description, description),
        ranks=ranks,
        backend=_c10d().get_backend(pg) if pg in _c10d()._world.pg_map else pg.name(),  # noqa: SLF001
        timeout_s=timeout_s(pg),
        queues=_queues(pg),
        is_foreign=pg not in _c10d()._world.pg_map,  # noqa: SLF001
    )


def _ranks(pg: dist.ProcessGroup) -> tuple[int, ...]:
    """Return its ranks in the default group, in the order of their ranks in this one."""
    # torch's public functions reject foreign groups (torch 2.9 to 2.15).
    places = _c10d()._world.pg_group_ranks.get(pg)  # noqa: SLF001
    return tuple(sorted(places, key=places.get)) if places else tuple(range(pg.size()))


def timeout_s(pg: dist.ProcessGroup) -> float | None:
    """Return the time limit of one of its backends; torch has no public function for it."""
    try:
        # A group has no public list of its backends, and a backend no public time limit (torch 2.9 to 2.15).
        devices = pg._device_types  # noqa: SLF001
        options = pg._get_backend(devices[0]).options  # noqa: SLF001
        return float(options._timeout.total_seconds())  # noqa: SLF001
    # Backends that are written in Python, such as those of tests, need not have options.
    except (RuntimeError, AttributeError, IndexError):
        return None


def _queues(pg: dist.ProcessGroup) -> bool:
    """Return whether it has a backend for GPUs other than those that make the host wait."""
    try:
        # A group has no public list of its backends (torch 2.9 to 2.15).
        devices = [each for each in pg._device_types if each.type != "cpu"]  # noqa: SLF001
        return any(pg._get_backend(each).name() not in _HOST_WAITS for each in devices)  # noqa: SLF001
    except (RuntimeError, AttributeError):
        return False


def living_groups() -> dict[dist.ProcessGroup, str]:
    """Return the process groups of this process with torch's names of them; empty without a default group."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return {}
    # torch has no public list of groups (torch 2.9 to 2.15).
    return dict(c10d._world.pg_names)  # noqa: SLF001


def _c10d() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]
