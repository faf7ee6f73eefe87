"""An agent that loses and delays messages: retried messages arrive, others fail with a clear error."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
import torch.distributed.rpc as rpc
from torch.testing import assert_close

from disttest.testing import World

from ..ranks import meet
from . import remote, shim
from .agents import agent, assert_clean, until_counts, until_flushed, worker

# New processes: the reference counting of a process stays with its first agent for good.
pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.fresh_world, pytest.mark.device("cpu")]


@pytest.fixture
def faulty(request: pytest.FixtureRequest, world: World) -> Iterator[World]:
    """Agents with the faults that the test names."""
    with agent(
        world, backend="FAULTY_TENSORPIPE", options=shim.faulty_options(**request.param), graceful=False
    ):
        yield world
        assert_clean(world)  # and no graceful end: it would itself be made of calls that get lost


@pytest.mark.covers("RU-22")
@pytest.mark.parametrize(
    "faulty", [{"messages_to_fail": ["PYTHON_CALL"], "num_fail_sends": 1}], indirect=True
)
def test_lost_call_is_an_error_and_the_next_one_works(faulty: World) -> None:
    """A user's call is not sent again: it may have run."""
    there = worker((faulty.rank + 1) % faulty.size)
    key = f"lost call of {faulty.rank}"
    before = remote.counted[f"lost call of {(faulty.rank - 1) % faulty.size}"]
    with pytest.raises(RuntimeError, match="failed intentionally"):
        rpc.rpc_sync(there, remote.count, args=(key,))
    meet(faulty)
    assert remote.counted[f"lost call of {(faulty.rank - 1) % faulty.size}"] == before
    assert_close(rpc.rpc_sync(there, torch.add, args=(torch.ones(1), 1)), torch.full((1,), 2.0))


@pytest.mark.covers("RU-05", "RU-22")
@pytest.mark.parametrize("message", ["RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE"])
def test_lost_messages_of_references_are_sent_again(world: World, message: str) -> None:
    """With each rank's first such message lost, a shared reference is still read, and its owner lets the value go."""
    options = shim.faulty_options(messages_to_fail=[message], num_fail_sends=1)
    with agent(world, backend="FAULTY_TENSORPIPE", options=options):
        there, third = (world.rank + 1) % world.size, (world.rank + 2) % world.size
        rref = rpc.remote(worker(there), torch.full, args=((2,), 4.0))
        assert_close(rpc.rpc_sync(worker(third), remote.read, args=(rref,)), torch.full((2,), 4.0))
        until_flushed()
        del rref
        gc.collect()
        meet(world)
        until_counts(there, owners=0, forks=0)
        assert_clean(world)


@pytest.mark.parametrize("faulty", [{"messages_to_delay": {"PYTHON_CALL": 0.4}}], indirect=True)
def test_delay_counts_towards_the_time_limit(faulty: World) -> None:
    """A call that is delayed beyond its limit raises; a longer limit, or a kind of message without delay, gives the answer."""
    there = worker((faulty.rank + 1) % faulty.size)
    with pytest.raises(RuntimeError, match="RPC ran for more than"):
        rpc.rpc_sync(there, remote.same, args=(1,), timeout=0.1)
    assert rpc.rpc_sync(there, remote.same, args=(2,), timeout=20) == 2
    # Builtin operators are another kind of message: no delay, no limit passed.
    assert rpc.rpc_sync(there, torch.add, args=(torch.ones(1), 1), timeout=20).item() == 2


@pytest.mark.parametrize("faulty", [{"messages_to_delay": {"SCRIPT_RREF_FETCH_CALL": 0.4}}], indirect=True)
def test_delayed_reference_is_read_late(faulty: World) -> None:
    """Reading is delayed: a short limit raises, a long one gives the value, even after that failure."""
    there = worker((faulty.rank + 1) % faulty.size)
    rref = rpc.remote(there, torch.add, args=(torch.ones(1), 1))
    assert rref.to_here(timeout=20).item() == 2
    late = rpc.remote(there, torch.add, args=(torch.ones(1), 1))
    with pytest.raises(RuntimeError, match="RPC ran for more than"):
        late.to_here(timeout=0.05)
    assert late.to_here(timeout=20).item() == 2
    del rref, late


@pytest.mark.parametrize(
    "faulty", [{"messages_to_fail": ["PYTHON_REMOTE_CALL"], "num_fail_sends": 1}], indirect=True
)
def test_reference_whose_creation_was_lost_says_so(faulty: World) -> None:
    """Reading it raises and names the creation as what failed; a new reference works."""
    there = worker((faulty.rank + 1) % faulty.size)
    rref = rpc.remote(there, remote.same, args=(1,))
    until_flushed()
    with pytest.raises(RuntimeError, match="RRef creation"):
        rref.to_here(timeout=5)
    assert rpc.remote(there, torch.add, args=(torch.ones(1), 1)).to_here().item() == 2
    del rref
