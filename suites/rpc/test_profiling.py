"""The profiler's events of a call: caller, callee, and the function that ran."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.rpc as rpc

from disttest.testing import World

from ..ranks import meet
from . import remote, scripted, shim
from .agents import until_flushed, worker

pytestmark = [pytest.mark.world_size(2), pytest.mark.device("cpu")]


def _event(profile: Any, part: str) -> Any:
    found = [event for event in profile.function_events if part in event.name]
    assert found, f"no event with {part!r} among {sorted({event.name for event in profile.function_events})}"
    return found[0]


@pytest.mark.covers("RU-10")
@pytest.mark.parametrize("kind", ["rpc_sync", "rpc_async", "remote"])
@pytest.mark.parametrize("what", ["python", "builtin", "scripted"])
def test_profile_names_the_call_and_what_ran_there(agents: World, kind: str, what: str) -> None:
    """One event names function, caller and callee, and one of the callee's node what ran there."""
    function = {
        "python": remote.signed,
        "builtin": torch.add,
        "scripted": scripted.script(scripted.weighted_sum) if what == "scripted" else None,
    }[what]
    meet(agents)
    there = (agents.rank + 1) % agents.size
    args = (torch.ones(64),) if what == "python" else (torch.ones(64), torch.ones(64))
    with shim.profile() as profile:
        answer = getattr(rpc, kind)(worker(there), function, args=args)
        if kind == "rpc_async":
            answer.wait()
        elif kind == "remote":
            answer.to_here()
            until_flushed()
    call = _event(profile, f"{kind}#")
    name = {"python": "signed", "builtin": "torch::add|aten::add|add", "scripted": "weighted_sum"}[what]
    assert any(part in call.name for part in name.split("|"))
    assert f"({worker(agents.rank)} -> {worker(there)})" in call.name
    assert call.cpu_time_total > 0
    # What a scripted function or one behind a reference ran may be told too late for this profile.
    if what != "scripted" and kind != "remote":
        inner = _event(profile, "#remote_op: ")
        assert call.name in inner.name
        assert inner.node_id == there
