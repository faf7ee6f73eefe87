"""How a fault is declared, and the few tools that plant one. Nothing of torch is changed on disk."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

Plant = Callable[["Fault"], None]

# torch has renamed them, and calls them by the new names itself.
SINGLE_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
SINGLE_SCATTER = (
    "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
)

reached = mmap.mmap(-1, 1)
"""Shared with all ranks: 1 once the function that a fault replaces has been called in a rank that has the fault."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what is wrong, where to look for a test that notices, and how to plant it."""

    name: str
    says: str
    suite: str
    """Files or folders below ``suites`` that should notice; the first ones are tried first."""
    plant: Plant
    one_rank: bool = False
    """Planted in the last rank only."""
    equivalent: str = ""
    """Why no test can tell the difference, if that is so."""

    def here(self) -> bool:
        """Whether this process has the fault. Asked when a call is made: ranks are forked after planting."""
        return not self.one_rank or (
            dist.is_initialized() and c10d._get_default_group().rank() == _last_rank()
        )


def _last_rank() -> int:
    return c10d._get_default_group().size() - 1


FAULTS: list[Fault] = []


def fault(
    name: str, says: str, *, suite: str, both: bool = False, equivalent: str = "", one_rank: bool = False
) -> Any:
    """Declare a fault; with ``both``, a second time for one rank only."""

    def declare(plant: Plant) -> Plant:
        if any(name == each.name for each in FAULTS):
            raise ValueError(f"two faults are called {name}")
        make = functools.partial(Fault, says=says, suite=suite, plant=plant, equivalent=equivalent)
        FAULTS.append(make(name=name, one_rank=one_rank))
        if both:
            FAULTS.append(make(name=f"{name}-on-one-rank", one_rank=True))
        return plant

    return declare


def replace(name: str, make: Callable[[Any], Any], fault: Fault, *owners: Any) -> None:
    """Put ``make(original)`` in the place of a function; the original runs in ranks without the fault."""
    owners = owners or (dist, c10d)
    original = getattr(owners[0], name)
    changed = make(original)

    @functools.wraps(original)
    def either(*args: Any, **kwargs: Any) -> Any:
        if not fault.here():
            return original(*args, **kwargs)
        reached[0] = 1
        return changed(*args, **kwargs)

    for owner in owners:
        setattr(owner, name, either)


class DoneAlready:
    """A handle that says it is done when nothing is."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self, *_args: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self._work.get_future()
