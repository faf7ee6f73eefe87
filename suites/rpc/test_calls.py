"""Calls: who runs what, how often, with which arguments, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch.testing import assert_close

from disttest.testing import World

from ..ranks import meet
from . import remote, scripted
from .agents import worker

pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.device("cpu")]


def sync(to: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    return rpc.rpc_sync(to, function, args=args, kwargs=kwargs)


def asynchronous(to: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    return rpc.rpc_async(to, function, args=args, kwargs=kwargs).wait()


def by_reference(to: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    return rpc.remote(to, function, args=args, kwargs=kwargs).to_here()


every_way = pytest.mark.parametrize("call", [sync, asynchronous, by_reference])


@pytest.mark.world_size(1, 2, 3, 4)
@pytest.mark.covers("RU-03", "RU-09")
@every_way
def test_function_runs_on_the_rank_that_was_asked(agents: World, call: Any) -> None:
    """Every rank asks every rank, itself included: the name and the weighted tensor that come back are the callee's."""
    mine = torch.arange(3.0) + 10 * agents.rank
    for rank in range(agents.size):
        name, answer = call(worker(rank), remote.signed, mine, weight=float(rank + 1))
        assert name == worker(rank)
        assert_close(answer, mine * (rank + 1))


@every_way
def test_destination_is_a_name_a_number_or_a_worker(agents: World, call: Any) -> None:
    """All three reach the same agent, and ``get_worker_info`` tells its name and number."""
    there = (agents.rank + 1) % agents.size
    info = rpc.get_worker_info(worker(there))
    assert (info.id, info.name) == (there, worker(there))
    for destination in (worker(there), there, info):
        assert call(destination, remote.my_name) == worker(there)
    assert rpc.get_worker_info().name == worker(agents.rank)


@every_way
def test_builtin_operators(agents: World, call: Any) -> None:
    """Torch operators with keywords, with lists and with a bool as result give the same result as locally."""
    left, right = torch.full((2, 2), float(agents.rank)), torch.arange(4.0).reshape(2, 2)
    there = worker((agents.rank + 1) % agents.size)
    assert_close(call(there, torch.add, left, right, alpha=3), left + 3 * right)
    assert_close(call(there, torch.stack, [left, right], dim=1), torch.stack([left, right], dim=1))
    if call is not by_reference:
        assert call(there, torch.is_floating_point, right) is True


@every_way
def test_scripted_functions(agents: World, call: Any) -> None:
    """A TorchScript function runs over there, with its default and with a given weight."""
    function = scripted.script(scripted.weighted_sum)
    meet(agents)  # every rank has it compiled
    left, right = torch.full((3,), float(agents.rank)), torch.ones(3)
    there = worker((agents.rank + 1) % agents.size)
    assert_close(call(there, function, left, right), left + 2)
    assert_close(call(there, function, left, right, weight=5.0), left + 5)


def test_methods_of_classes(agents: World) -> None:
    """Static, class and bound methods and a constructor can be called; an object made there comes back whole."""
    there = worker((agents.rank + 1) % agents.size)
    assert sync(there, remote.Account.rate, 2) == 6
    assert sync(there, remote.Account.name_of_bank, suffix="!") == "the bank!"
    assert sync(there, remote.Account(5.0).pay_in, 2.0) == 7.0
    account = sync(there, remote.Account, 9.0)
    assert type(account) is remote.Account
    assert account.balance == 9.0


TENSORS = {
    "bool": torch.tensor([True, False]),
    "int64": torch.tensor([2**40, -1]),
    "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "complex": torch.tensor([1 + 2j, -3j]),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(2.5),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "slice of a large one": torch.arange(10_000.0)[5:15:2],
    "large": torch.arange(2_000_000, dtype=torch.int32),
    "sparse": torch.eye(4).to_sparse(),
}


@pytest.mark.parametrize("name", TENSORS)
@every_way
def test_tensors_arrive_as_they_left(agents: World, call: Any, name: str) -> None:
    """There and back, a tensor keeps dtype, shape, layout and values."""
    tensor = TENSORS[name]
    back = call(worker((agents.rank + 1) % agents.size), remote.same, tensor)
    assert (back.dtype, back.shape, back.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert_close(
        back.to_dense() if back.is_sparse else back, tensor.to_dense() if tensor.is_sparse else tensor
    )


def test_objects_arrive_as_they_left(agents: World) -> None:
    """Nested containers, odd text, bytes and a user's class with tensors come back equal."""
    parcel = remote.Parcel("p", {"a": torch.ones(2) * agents.rank, "b": torch.zeros(0)})
    value = {"nothing": None, "text": "äöü\0", "deep": [(1, {"x": parcel}), {2, 3}], "bytes": b"\xff"}
    back = sync(worker((agents.rank + 1) % agents.size), remote.same, value)
    sent_parcel, came = value["deep"][0][1]["x"], back["deep"][0][1]["x"]  # type: ignore[index]
    assert (back["nothing"], back["text"], back["bytes"]) == (None, "äöü\0", b"\xff")
    assert back["deep"][1] == {2, 3}
    assert came.label == "p"
    assert_close(came.tensors, sent_parcel.tensors)


def test_remote_side_gets_a_copy(agents: World) -> None:
    """A tensor that the callee fills in place is returned filled, and the caller's own tensor is unchanged."""
    mine = torch.zeros(3)
    back = sync(worker((agents.rank + 1) % agents.size), remote.fill, mine, 7.0)
    assert_close(back, torch.full((3,), 7.0))
    assert_close(mine, torch.zeros(3))


@pytest.mark.covers("RU-06")
@every_way
def test_each_call_runs_once(agents: World, call: Any) -> None:
    """Twenty calls raise the callee's counter by one each, in order."""
    key = f"{call.__name__} from {agents.rank}"
    there = worker((agents.rank + 1) % agents.size)
    before = sync(there, remote.count, key)
    answers = [call(there, remote.count, key) for _ in range(20)]
    assert answers == list(range(before + 1, before + 21))


def test_many_calls_in_flight_keep_their_own_results(agents: World) -> None:
    """Forty calls to each rank at once, waited for in reverse, each give their own answer."""
    futures = {
        (rank, number): rpc.rpc_async(worker(rank), remote.signed, args=(torch.full((4,), float(number)),))
        for number in range(40)
        for rank in range(agents.size)
    }
    for (rank, number), future in reversed(futures.items()):
        name, answer = future.wait()
        assert name == worker(rank)
        assert_close(answer, torch.full((4,), float(number)))


def test_futures_combine(agents: World) -> None:
    """``wait_all``, ``collect_all`` and chained ``then`` give the right values."""

    def ask(rank: int) -> Any:
        return rpc.rpc_async(worker(rank), torch.add, args=(torch.tensor(1.0), torch.tensor(float(rank))))

    ranks = range(agents.size)
    assert [t.item() for t in torch.futures.wait_all([ask(rank) for rank in ranks])] == [
        1.0 + r for r in ranks
    ]
    collected = torch.futures.collect_all([ask(rank) for rank in ranks]).wait()
    assert [future.wait().item() for future in collected] == [1.0 + rank for rank in ranks]
    chained = ask(0).then(lambda future: future.wait() * 10).then(lambda future: future.wait() + 1)
    assert chained.wait().item() == 11.0
    assert chained.done()


def test_future_is_not_done_before_the_answer(agents: World) -> None:
    """While the callee waits at a gate the future is not done; once it is open it is, with the answer."""
    there = worker((agents.rank + 1) % agents.size)
    gate = f"future of {agents.rank}"
    future = rpc.rpc_async(there, remote.wait_for, args=(gate,))
    assert not future.done()
    sync(there, remote.open_gate, gate)
    assert future.wait() == gate
    assert future.done()


def test_calls_nest_around_the_ring(agents: World) -> None:
    """A call passed on from rank to rank goes around the ring twice and collects each rank's name in order."""
    hops = 2 * agents.size
    path = sync(worker(agents.rank), remote.around, hops, [])
    assert path == [worker((agents.rank + hop) % agents.size) for hop in range(hops + 1)]


@every_way
def test_asynchronous_execution_waits_for_the_inner_future(agents: World, call: Any) -> None:
    """The answer is the result of the callee's future on a third rank, callback included."""
    there, third = (agents.rank + 1) % agents.size, (agents.rank + 2) % agents.size
    answer = call(worker(there), remote.add_elsewhere, third, torch.ones(2), torch.full((2,), 5.0))
    assert_close(answer, torch.full((2,), 7.0))


def test_asynchronous_execution_must_return_a_future(agents: World) -> None:
    """A function so marked that returns a number raises at the caller."""
    with pytest.raises(RuntimeError, match="must return a torch"):
        sync(worker((agents.rank + 1) % agents.size), remote.not_a_future)


def test_all_ranks_gather_each_others_values(agents: World) -> None:
    """The agents' own all-gather gives every rank every rank's value by name."""
    gathered = rpc.api._all_gather({"rank": agents.rank})
    assert gathered == {worker(rank): {"rank": rank} for rank in range(agents.size)}


@pytest.mark.covers("RU-08")
def test_collectives_work_beside_calls(agents: World) -> None:
    """An all-reduce while a call is under way gives the sum, and the call its answer."""
    future = rpc.rpc_async(worker((agents.rank + 1) % agents.size), remote.same, args=(agents.rank,))
    total = torch.tensor([float(agents.rank)], device=agents.device)
    dist.all_reduce(total)
    assert future.wait() == agents.rank
    assert total.item() == sum(range(agents.size))
