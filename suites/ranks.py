"""Messages between the ranks of a test about their results.

They exchange it through the rendezvous store and not through the collectives under test, so that a broken
collective cannot confirm its result.
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


def fresh_name(name: str) -> str:
    """A key that no test before has used. Every rank must call it, the same number of times."""
    return f"disttest/{name}/{next(_rounds)}"


def exchange(world: World, value: Any) -> list[Any]:
    """The value of every rank, by rank. Every rank must call it, the same number of times."""
    return _gather_at_store(world.rank, world.size, value)


def _gather_at_store(rank: int, size: int, value: Any) -> list[Any]:
    name = fresh_name("exchange")
    here = store()
    here.set(f"{name}/{rank}", pickle.dumps(on_cpu(value)))
    keys = [f"{name}/{other}" for other in range(size)]
    here.wait(keys, _LIMIT)
    return [pickle.loads(here.get(key)) for key in keys]


def meet(world: World) -> None:
    """Return when every rank has come here: a barrier that uses no collective."""
    exchange(world, None)


def raised_by(call: Any, *args: Any, **kwargs: Any) -> BaseException | None:
    """The exception that the call raises, or None."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return error
    return None


@pytest.fixture
def leave_together(request: pytest.FixtureRequest) -> Iterator[None]:
    """No rank cleans up (groups that the test made are destroyed then) before all ranks are done with the test."""
    world = request.getfixturevalue("world") if "world" in request.fixturenames else None
    yield
    if world is not None:
        meet(world)


@contextmanager
def subgroup(ranks: list[int], **kwargs: Any) -> Iterator[Any]:
    """A process group of these ranks, destroyed afterwards. Every rank of the world must enter.

    It is destroyed when all ranks are done with it: a member that leaves while another still connects breaks it.
    """
    group = dist.new_group(ranks, **kwargs)
    yield group
    _gather_at_store(dist.get_rank(), dist.get_world_size(), None)
    if dist.get_rank() in ranks:
        dist.destroy_process_group(group)


def only_on(world: World, rank: int, match: str, *, kind: Any = RuntimeError) -> Any:
    """Expect an exception on one rank, and none on the others."""
    import contextlib

    return pytest.raises(kind, match=match) if world.rank == rank else contextlib.nullcontext()


def on_cpu(value: Any) -> Any:
    """The value with its tensors on the CPU, those in dictionaries, lists and tuples too."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(on_cpu, value))
    return value
