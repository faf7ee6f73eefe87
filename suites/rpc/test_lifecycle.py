"""How agents meet, start, end and go away. Each test starts its own agents, in warm processes."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.rpc as rpc

from disttest.testing import World

from ..ranks import exchange, meet
from . import remote, shim
from .agents import agent, nothing, start, until, until_unreachable, worker

pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.device("cpu")]

Options = rpc.TensorPipeRpcBackendOptions


def _by_file(world: World) -> str:
    return f"file://{world.tmp_path}/rendezvous"


def _by_tcp(world: World) -> str:
    port = exchange(world, _free_port() if world.is_first else None)[0]
    # The first rank may be on another node.
    return f"tcp://{os.environ['MASTER_ADDR']}:{port}"


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank hosts the store of ``tcp://``; a launcher's contract has it look for the launcher's."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")


@pytest.mark.world_size(1, 2, 3, 4)
@pytest.mark.covers("RU-01", "RU-20", "RU-08")
@pytest.mark.parametrize("init_method", [_by_file, _by_tcp], ids=["file", "tcp"])
@pytest.mark.usefixtures("own_store")
def test_agents_meet_by_every_method(world: World, init_method: Callable[[World], str]) -> None:
    """Over a file or a TCP store, every rank finds every agent under its name."""
    with agent(world, options=Options(init_method=init_method(world))):
        names = [rpc.rpc_sync(worker(rank), remote.my_name) for rank in range(world.size)]
    assert names == [worker(rank) for rank in range(world.size)]


def test_agents_start_again_after_their_end(world: World) -> None:
    """Three rounds of start, call and end; after each end a call raises."""
    for round_number in range(3):
        with agent(world):
            there = worker((world.rank + 1) % world.size)
            assert rpc.rpc_sync(there, remote.same, args=(round_number,)) == round_number
        with pytest.raises(RuntimeError, match="RPC has not been initialized"):
            rpc.rpc_sync(worker(0), nothing)


def test_only_one_agent_at_a_time(world: World) -> None:
    """A second start in the same process raises, and the first agent goes on answering."""
    with agent(world):
        with pytest.raises(RuntimeError, match="RPC is already initialized"):
            start(world)
        assert rpc.rpc_sync(worker(0), remote.my_name) == worker(0)


@pytest.mark.covers("RU-21")
def test_options_reach_the_agent(world: World, world_tmp_path: Path) -> None:
    """Threads, time limit and meeting place are the agent's own afterwards, in a group of fixed size."""
    method = f"file://{world_tmp_path}/options"
    with agent(world, options=Options(num_worker_threads=3, rpc_timeout=7.5, init_method=method)):
        current = rpc.api._get_current_rpc_agent()
        found = current._get_backend_options()
        assert (found.num_worker_threads, found.rpc_timeout, found.init_method) == (3, 7.5, method)
        assert rpc.get_rpc_timeout() == 7.5
        assert current.is_static_group


@pytest.mark.parametrize(
    ("kwargs", "kind", "message"),
    [
        ({"backend": "TENSORPIPE"}, TypeError, "backend must be a member of BackendType"),
        ({"rpc_backend_options": {"rpc_timeout": 1}}, TypeError, "must be an instance of RpcBackendOptions"),
        ({"name": "not a name!"}, RuntimeError, "not match|not valid|only contain|Worker name"),
        ({"name": "n" * 128}, RuntimeError, "shorter than 128"),
    ],
)
def test_wrong_arguments_are_refused(world: World, kwargs: dict, kind: type[Exception], message: str) -> None:
    """A wrong kind of backend or options, and a name with bad characters or too long, raise and say so."""
    arguments = {"name": worker(world.rank), "rank": world.rank, "world_size": world.size, **kwargs}
    with pytest.raises(kind, match=message):
        rpc.init_rpc(**arguments)
    if rpc.api._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)


def test_two_workers_of_one_name_are_refused(world: World) -> None:
    """All ranks take the same name: each gets an error, and no agent is left."""
    with pytest.raises(RuntimeError, match="unique"):
        rpc.init_rpc("twin", rank=world.rank, world_size=world.size)
    assert not rpc.api._is_current_rpc_agent_set()


@pytest.mark.covers("RU-25")
def test_nothing_warns(world: World) -> None:
    """Start, a call, its distributed backward and the end give no deprecation or future warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        warnings.simplefilter("error", FutureWarning)
        with agent(world):
            with torch.distributed.autograd.context() as context:
                one = torch.ones(1, requires_grad=True)
                there = worker((world.rank + 1) % world.size)
                loss = rpc.rpc_sync(there, torch.add, args=(one, one)).sum()
                torch.distributed.autograd.backward(context, [loss])
            meet(world)


def test_graceful_end_waits_for_calls_in_flight(world: World) -> None:
    """A rank leaves at once; the others still get its answers, and it theirs."""
    start(world)
    marker = str(world.tmp_path / f"done-{world.rank}")
    there = worker((world.rank + 1) % world.size)
    rpc.rpc_async(there, _write_later, args=(marker,))
    rpc.shutdown()
    meet(world)
    assert Path(marker).read_text() == there


def _write_later(path: str) -> None:
    # The call is still going on when its sender has begun to shut down: it must reach a third rank first.
    third = (rpc.get_worker_info().id + 1) % len(rpc.api._get_current_rpc_agent().get_worker_infos())
    rpc.rpc_sync(worker(third), torch.add, args=(torch.ones(500_000), 1))
    Path(path).write_text(remote.my_name())


def test_abrupt_end_waits_for_nobody(world: World) -> None:
    """A rank that never waited for its call's answer ends abruptly and has no agent left."""
    start(world)
    meet(world)
    gate = f"abrupt {world.rank}"
    rpc.rpc_async(worker((world.rank + 1) % world.size), remote.wait_for, args=(gate,))
    meet(world)
    remote.open_gate(f"abrupt {(world.rank - 1) % world.size}")
    rpc.shutdown(graceful=False)
    assert not rpc.api._is_current_rpc_agent_set()


@pytest.mark.fresh_world  # the reference counting of a process stays with its first agent for good
@pytest.mark.covers("RU-02")
@pytest.mark.parametrize("strict", [True, False])
def test_leaked_reference_is_an_error_when_asked(world: World, strict: bool) -> None:
    """A fork that another rank still holds when its owner ends.

    Runs over an abrupt end: a graceful one deletes what users hold before it looks.
    """
    start(world)
    if world.rank == 0:
        rref = rpc.RRef(torch.ones(1))
        for rank in range(1, world.size):
            rpc.rpc_sync(worker(rank), remote.keep, args=("leak", rref))
    meet(world)
    with shim.leaks_are_errors(strict):
        if strict and world.rank == 0:
            with pytest.raises(RuntimeError, match="Leaking RRef"):
                rpc.shutdown(graceful=False)
        elif world.rank == 0:
            rpc.shutdown(graceful=False)
    meet(world)
    remote.drop("leak")
    with shim.leaks_are_errors(False):
        if world.rank:
            rpc.shutdown(graceful=False)


@pytest.mark.covers("RU-04")
def test_calls_to_a_rank_that_left_fail(world: World) -> None:
    """They raise the transport's error, and the ranks that stayed still answer each other."""
    gone = world.size - 1
    start(world)
    meet(world)
    if world.rank == gone:
        rpc.shutdown(graceful=False)
    else:
        text = until_unreachable(gone)
        assert "tensorpipe" in text, "the transport says so, and not the time limit"
        for rank in range(gone):  # the others still hear each other
            assert rpc.rpc_sync(worker(rank), remote.my_name) == worker(rank)
    meet(world)
    if world.rank != gone:
        rpc.shutdown(graceful=False)


@pytest.mark.fresh_world
@pytest.mark.covers("RU-04")
def test_call_in_flight_fails_when_its_rank_leaves(world: World) -> None:
    """The answer never comes; the caller hears so at once, and does not wait for the time limit."""
    gone = world.size - 1
    start(world)
    gate = f"in flight {world.rank}"
    future = rpc.rpc_async(worker(gone), remote.wait_for, args=(gate, 1.0)) if world.rank != gone else None
    if future is None:
        until(lambda: len(remote.gates) == gone, "the calls to arrive")
        rpc.shutdown(graceful=False)
    else:
        with pytest.raises(RuntimeError, match="tensorpipe"):
            future.wait()
        rpc.shutdown(graceful=False)


@pytest.mark.usefixtures("own_store")
def test_group_grows_and_shrinks(world: World) -> None:
    """Without a world size, agents come one after another, hear of each other, and may leave."""
    options = Options(init_method=_by_tcp(world))
    for rank in range(world.size):
        if world.rank == rank:
            rpc.init_rpc(worker(rank), rank=rank, rpc_backend_options=options)
            assert not rpc.api._get_current_rpc_agent().is_static_group
        meet(world)
        if world.rank <= rank:
            known = {info.name for info in rpc.api._get_current_rpc_agent().get_worker_infos()}
            assert known == {worker(number) for number in range(rank + 1)}
    for rank in range(world.size):
        assert rpc.rpc_sync(worker(rank), remote.my_name) == worker(rank)
    meet(world)
    for rank in reversed(range(world.size)):
        if world.rank == rank:
            rpc.shutdown()
        meet(world)
