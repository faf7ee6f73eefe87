"""Remote references: who owns, who holds, and when a value is let go."""

from __future__ import annotations

import gc
import pickle

import pytest
import torch
import torch.distributed.rpc as rpc
from torch.testing import assert_close

from disttest.testing import World

from ..ranks import meet
from . import remote, scripted, shim
from .agents import until, until_counts, until_flushed, worker

pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.device("cpu")]


def test_reference_knows_its_owner(agents: World) -> None:
    """It names its owner, gives the value on each read, is confirmed, and its local value is for the owner alone."""
    there = (agents.rank + 1) % agents.size
    rref = rpc.remote(worker(there), torch.add, args=(torch.ones(2), agents.rank))
    assert not rref.is_owner()
    assert (rref.owner().id, rref.owner_name()) == (there, worker(there))
    for _ in range(2):
        assert_close(rref.to_here(), torch.ones(2) + agents.rank)
    until(rref.confirmed_by_owner, "the owner to confirm the reference")
    with pytest.raises(RuntimeError, match="can't call localValue"):
        rref.local_value()
    assert_close(rpc.rpc_sync(worker(there), remote.read_local, args=(rref,)), torch.ones(2) + agents.rank)


def test_reference_to_a_local_value(agents: World) -> None:
    """The owner gets the very object, by both ways to read, and another rank a copy."""
    value = remote.Account(float(agents.rank))
    rref = rpc.RRef(value)
    assert rref.is_owner()
    assert rref.confirmed_by_owner()
    assert rref.local_value() is value
    assert rref.to_here() is value
    copy = rpc.rpc_sync(worker((agents.rank + 1) % agents.size), remote.read, args=(rref,))
    assert copy.balance == agents.rank


def test_reference_to_the_own_rank(agents: World) -> None:
    """A remote call to the own rank makes a reference that this rank owns, with the right value."""
    rref = rpc.remote(worker(agents.rank), torch.add, args=(torch.ones(1), 1))
    assert rref.is_owner()
    assert rref.to_here().item() == 2


@pytest.mark.world_size(2, 3, 4)
@pytest.mark.covers("RU-05", "RU-06", "RU-07")
def test_owner_counts_references_and_forks(agents: World) -> None:
    """One owner per value; a fork for each rank that holds it; nothing once all have let go."""
    meet(agents)
    if agents.rank == 0:
        until_counts(1, owners=0, forks=0)
        rref = rpc.remote(worker(1), remote.same, args=(torch.zeros(2),))
        rref.to_here()
        until_flushed()
        until_counts(1, owners=1, forks=1)
        holders = range(2, agents.size)
        for rank in holders:
            rpc.rpc_sync(worker(rank), remote.keep, args=("counted", rref))
        until_counts(1, owners=1, forks=1 + len(holders))
        other = rpc.remote(worker(1), remote.same, args=(torch.zeros(2),))
        other.to_here()
        until_counts(1, owners=2, forks=2 + len(holders))
        del rref, other
        gc.collect()
        until_counts(1, owners=1 if holders else 0, forks=len(holders))
        for rank in holders:
            rpc.rpc_sync(worker(rank), remote.drop, args=("counted",))
        until_counts(1, owners=0, forks=0)
    meet(agents)


def test_fork_outlives_the_first_holder(agents: World) -> None:
    """The rank that made it lets go; another that keeps it can still read the value."""
    owner, keeper = (agents.rank + 1) % agents.size, (agents.rank + 2) % agents.size
    name = f"fork of {agents.rank}"
    rref = rpc.remote(worker(owner), torch.full, args=((2,), 3.0 + agents.rank))
    rpc.rpc_sync(worker(keeper), remote.keep, args=(name, rref))
    del rref
    gc.collect()
    assert_close(rpc.rpc_sync(worker(keeper), _read_kept, args=(name,)), torch.full((2,), 3.0 + agents.rank))
    rpc.rpc_sync(worker(keeper), remote.drop, args=(name,))


def _read_kept(name: str) -> torch.Tensor:
    return remote.kept[name].to_here()


def test_value_is_let_go_on_the_owner(agents: World) -> None:
    """While the reference lives its owner counts it; afterwards it counts none."""
    there = (agents.rank + 1) % agents.size
    rref = rpc.remote(worker(there), remote.same, args=(torch.zeros(3),))
    rref.to_here()
    assert rpc.rpc_sync(worker(there), shim.rref_counts)["owner_rrefs"] >= 1
    del rref
    meet(agents)
    until_counts(there, owners=0, forks=0)


def test_references_travel_as_arguments_and_results(agents: World) -> None:
    """Passed on, handed back, made elsewhere or behind another reference, each has its true owner and value."""
    there, third = (agents.rank + 1) % agents.size, (agents.rank + 2) % agents.size
    rref = rpc.remote(worker(there), torch.full, args=((1,), float(agents.rank)))
    assert rpc.rpc_sync(worker(third), remote.read, args=(rref,)).item() == agents.rank
    back = rpc.rpc_sync(worker(third), remote.hand_back, args=(rref,))
    assert back.owner_name() == worker(there)
    assert back.to_here().item() == agents.rank
    made = rpc.rpc_sync(worker(there), remote.make_reference, args=("made there",))
    assert made.owner_name() == worker(there)
    assert made.to_here() == "made there"
    of_reference = rpc.remote(worker(third), remote.hand_back, args=(rref,))
    assert of_reference.to_here().to_here().item() == agents.rank
    # The owner keeps a reference of its own until its last fork is gone.
    del back, made, of_reference


def test_scripted_function_reads_a_reference(agents: World) -> None:
    """A TorchScript function on the owner adds to the referred value."""
    function = scripted.script(scripted.add_referred)
    meet(agents)
    there = worker((agents.rank + 1) % agents.size)
    rref = rpc.remote(there, torch.full, args=((2,), 1.5))
    assert_close(rpc.rpc_sync(there, function, args=(rref, torch.ones(2))), torch.full((2,), 2.5))


def test_methods_through_a_reference(agents: World) -> None:
    """Methods change the one object, by all three ways to call, and a missing one raises ``AttributeError``."""
    there = worker((agents.rank + 1) % agents.size)
    account = rpc.remote(there, remote.Account, args=(100.0,))
    assert account.rpc_sync().pay_in(5.0) == 105.0
    assert account.rpc_async().pay_in(1.0).wait() == 106.0
    assert account.remote().pay_in(1.0).to_here() == 107.0
    assert account.to_here().balance == 107.0
    with pytest.raises(AttributeError, match="no_such_method"):
        account.rpc_sync().no_such_method()


def test_error_comes_out_when_the_reference_is_read(agents: World) -> None:
    """Each read raises the exception of the creating function, and another reference works."""
    there = worker((agents.rank + 1) % agents.size)
    rref = rpc.remote(there, remote.fail, args=(ValueError, "not made"))
    for _ in range(2):
        with pytest.raises(ValueError, match="not made"):
            rref.to_here()
    later = rpc.remote(there, remote.same, args=(1,))
    assert later.to_here() == 1


def test_reading_has_a_time_limit(agents: World) -> None:
    """A read before the value is there raises at its limit; a later one gives the value."""
    there = worker((agents.rank + 1) % agents.size)
    gate = f"reading {agents.rank}"
    rref = rpc.remote(there, remote.wait_for, args=(gate,))
    with pytest.raises(RuntimeError, match="RPC ran for more than"):
        rref.to_here(timeout=0.1)
    rpc.rpc_sync(there, remote.open_gate, args=(gate,))
    assert rref.to_here() == gate


def test_reference_travels_by_rpc_only(agents: World) -> None:
    """Pickling it by ordinary means raises and says why."""
    rref = rpc.RRef(1)
    with pytest.raises(RuntimeError, match="pickle rref in python pickler"):
        pickle.dumps(rref)
