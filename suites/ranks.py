"""How the ranks of a test speak about what they saw.

They exchange it through the rendezvous store and not through the collectives under test, so that a broken
collective can not vouch for itself.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from disttest.testing.world import World

_LIMIT = timedelta(seconds=60)
_rounds = itertools.count()


def store() -> dist.Store:
    """The store that the ranks met at; its keys are this world's own."""
    return dist.distributed_c10d._get_default_store()


def exchange(world: World, value: Any) -> list[Any]:
    """The value of every rank, by rank. Every rank must call it, the same number of times."""
    name = f"exchange/{next(_rounds)}"
    here = store()
    here.set(f"{name}/{world.rank}", pickle.dumps(_on_cpu(value)))
    keys = [f"{name}/{rank}" for rank in range(world.size)]
    here.wait(keys, _LIMIT)
    return [pickle.loads(here.get(key)) for key in keys]


def meet(world: World) -> None:
    """Return when every rank has come here: a barrier that uses no collective."""
    exchange(world, None)


def assert_same_everywhere(world: World, tensors: Any) -> None:
    """Every rank holds exactly the same values as rank 0."""
    first = exchange(world, tensors)[0]
    torch.testing.assert_close(_on_cpu(tensors), first, rtol=0, atol=0)


def assert_different_everywhere(world: World, tensor: torch.Tensor) -> None:
    """No two ranks hold the same values: the start that a test of synchronisation needs."""
    seen = exchange(world, tensor)
    for one, other in itertools.combinations(seen, 2):
        assert not torch.equal(one, other), "the ranks were meant to start from different values"


def raised_by(call: Any, *args: Any, **kwargs: Any) -> BaseException | None:
    """The exception that the call raises, or None."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return error
    return None


@contextmanager
def subgroup(ranks: list[int], **kwargs: Any) -> Iterator[Any]:
    """A process group of these ranks, destroyed afterwards. Every rank of the world must enter."""
    group = dist.new_group(ranks, **kwargs)
    yield group
    if dist.get_rank() in ranks:
        dist.destroy_process_group(group)


def only_on(world: World, rank: int, match: str, *, kind: Any = RuntimeError) -> Any:
    """Expect an exception on one rank, and none on the others."""
    import contextlib

    return pytest.raises(kind, match=match) if world.rank == rank else contextlib.nullcontext()


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(_on_cpu, value))
    return value
