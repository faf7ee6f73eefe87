"""The process of ordinary tests that are contained: it runs their pytest protocol, and is no rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from disttest.host.descendants import kill_descendants
from disttest.host.proc import forked_children, is_alive
from disttest.host.process import adopt_orphans, flush_output, leave
from disttest.runtime.messages.protocol import Channel, RunTest, TestDone, clean_text
from disttest.runtime.rank import watchdog
from disttest.runtime.rank.child import redirect_output, register_stacks, use_cuda_freely
from disttest.runtime.rank.measured import save_coverage
from disttest.runtime.rank.rank import (
    RankSpec,
    run_protocol,
    serve_orders,
    settle_in,
    shared_fixtures,
)

_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that Python starts once and keeps; nobody has left them behind."""


def serve_contained(
    spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]
) -> None:
    """Run tests until told to leave or until the supervisor is gone. Never returns."""
    channel = settle_in(spec, channel, session.config)
    adopt_orphans()
    use_cuda_freely()
    serve_orders(spec, channel, session, lambda order: _run(spec, channel, order, session, items))
    save_coverage()
    leave(0)


def _run(
    spec: RankSpec,
    channel: Channel,
    order: RunTest,
    session: pytest.Session,
    items: Mapping[str, pytest.Item],
) -> None:
    redirect_output(session.config, Path(order.log))
    register_stacks(spec.stacks)
    before = forked_children()
    run_protocol(items, order)
    left = () if shared_fixtures(session) else _end_leftovers(before)
    flush_output()
    leaks = (*left, *watchdog.stop_leftover())
    channel.send(TestDone(leaks=tuple(map(clean_text, leaks))))


def _end_leftovers(before: set[int]) -> tuple[str, ...]:
    """End what the test has started and left, and name it; fixtures of a module may have theirs live on."""
    left = {}
    for pid in filter(is_alive, forked_children() - before):
        try:
            process = psutil.Process(pid)
            command = " ".join(process.cmdline()) or process.name()
        except psutil.NoSuchProcess:
            continue
        if any(name in command for name in _HELPERS):
            before = before | {pid}
        else:
            left[pid] = f"process {pid} ({command[:60]}), which was killed"
    if left:
        kill_descendants(spare=before)
    return tuple(left.values())
