"""Exceptions and time limits across nodes; an agent survives both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.rpc as rpc

from disttest.testing import World

from ..ranks import meet
from . import remote, scripted, shim
from .agents import worker
from .test_calls import asynchronous, by_reference, every_way, sync

pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.device("cpu")]
__all__ = ["asynchronous", "by_reference"]


@every_way
@pytest.mark.parametrize("kind", [ValueError, KeyError, ZeroDivisionError, RuntimeError, AssertionError])
def test_exception_arrives_with_its_type_and_place(agents: World, call: Any, kind: type[Exception]) -> None:
    """Text, callee and remote traceback are in it, the type is kept or named, and the next call works."""
    there = worker((agents.rank + 1) % agents.size)
    with pytest.raises(Exception, match="on purpose") as caught:
        call(there, remote.fail, kind, "on purpose")
    text = str(caught.value)
    # A future keeps the commonest types only; of the others it names the type.
    kept = call is by_reference or kind in (ValueError, RuntimeError)
    assert type(caught.value) is (kind if kept else RuntimeError)
    assert kept or text.startswith(f"{kind.__name__}: ")
    assert there in text
    assert "in fail" in text, "the traceback of the other rank is part of the message"
    assert call(there, remote.same, 5) == 5


@every_way
def test_exception_of_a_rank_further_on(agents: World, call: Any) -> None:
    """The callee's own call fails on a third rank: the caller gets that exception, with the third rank's name."""
    there, third = (agents.rank + 1) % agents.size, (agents.rank + 2) % agents.size
    with pytest.raises(ValueError, match="deep") as caught:
        call(worker(there), remote.fail_further, third, "deep")
    assert worker(third) in str(caught.value)


@every_way
def test_exception_that_can_not_be_rebuilt_keeps_its_text(agents: World, call: Any) -> None:
    """It becomes a ``RuntimeError`` that says so and has the original text."""
    with pytest.raises(RuntimeError, match=r"(?s)Failed to create original exception type.*because \(7\)"):
        call(worker((agents.rank + 1) % agents.size), remote.fail, remote.Unusual, 7, "because")


@every_way
def test_error_of_a_builtin_operator(agents: World, call: Any) -> None:
    """Shapes that do not fit raise the operator's own error at the caller."""
    with pytest.raises(RuntimeError, match="must match the size"):
        call(worker((agents.rank + 1) % agents.size), torch.add, torch.ones(2), torch.ones(3))


@every_way
def test_error_of_a_scripted_function(agents: World, call: Any) -> None:
    """An exception of remote TorchScript code is raised at the caller, with its text."""
    function = scripted.script(scripted.fail_scripted)
    meet(agents)
    with pytest.raises(RuntimeError, match="scripted on purpose"):
        call(worker((agents.rank + 1) % agents.size), function, torch.ones(1))


def test_result_that_can_not_travel_is_an_error(agents: World) -> None:
    """A result that cannot be pickled raises at the caller, and the next call works."""
    there = worker((agents.rank + 1) % agents.size)
    with pytest.raises((RuntimeError, TypeError), match="pickle"):
        sync(there, remote.not_picklable)
    assert sync(there, remote.my_name) == there


def test_function_that_can_not_travel_is_an_error(agents: World) -> None:
    """Asking another rank to run a lambda raises and gives the reason."""
    with pytest.raises((AttributeError, TypeError, RuntimeError), match=r"lambda|local object|pickle"):
        sync(worker((agents.rank + 1) % agents.size), lambda: 1)


def test_callback_sees_the_error(agents: World) -> None:
    """A callback that waits for the failed call raises with its text."""
    future = rpc.rpc_async(worker((agents.rank + 1) % agents.size), remote.fail, args=(ValueError, "seen"))
    with pytest.raises(RuntimeError, match="seen"):
        future.then(lambda done: done.wait()).wait()


def test_one_failure_does_not_touch_the_others(agents: World) -> None:
    """One call fails among ten that give their own answers."""
    there = worker((agents.rank + 1) % agents.size)
    good = [rpc.rpc_async(there, remote.same, args=(number,)) for number in range(10)]
    bad = rpc.rpc_async(there, remote.fail, args=(ValueError, "alone"))
    with pytest.raises(ValueError, match="alone"):
        bad.wait()
    assert [future.wait() for future in good] == list(range(10))


def test_unknown_destination(agents: World) -> None:
    """A name and a number that no agent has raise, and the message says that there is no such destination."""
    with pytest.raises(RuntimeError, match="could not find destination name nobody"):
        sync("nobody", remote.my_name)
    with pytest.raises(RuntimeError, match="could not find destination"):
        sync(agents.size + 5, remote.my_name)


def test_target_must_be_callable(agents: World) -> None:
    """A number in place of a function raises ``TypeError``."""
    with pytest.raises(TypeError, match="function should be callable"):
        sync(worker(agents.rank), 5)


@pytest.mark.covers("RU-21")
@pytest.mark.parametrize("call", ["sync", "async"])
def test_time_limit_of_one_call(agents: World, call: str) -> None:
    """A call longer than its own limit raises, and the callee still answers the next."""
    there = worker((agents.rank + 1) % agents.size)
    gate = f"limit {call} {agents.rank}"
    with pytest.raises(RuntimeError, match="RPC ran for more than"):
        if call == "sync":
            rpc.rpc_sync(there, remote.wait_for, args=(gate,), timeout=0.1)
        else:
            rpc.rpc_async(there, remote.wait_for, args=(gate,), timeout=0.1).wait()
    sync(there, remote.open_gate, gate)
    assert sync(there, remote.my_name) == there


def test_default_time_limit(agents: World) -> None:
    """The default limit ends a call that names none, and leaves one with limit 0 waiting for its answer."""
    there = worker((agents.rank + 1) % agents.size)
    gate = f"default {agents.rank}"
    before = rpc.get_rpc_timeout()
    shim.set_default_timeout(0.1)
    try:
        assert rpc.get_rpc_timeout() == pytest.approx(0.1)
        with pytest.raises(RuntimeError, match="RPC ran for more than"):
            sync(there, remote.wait_for, gate)
        slow = rpc.rpc_async(there, remote.wait_for, args=(gate,), timeout=0)  # 0: no limit
    finally:
        shim.set_default_timeout(before)
    sync(there, remote.open_gate, gate)
    assert slow.wait() == gate
