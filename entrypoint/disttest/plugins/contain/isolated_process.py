"""The process of isolated tests, which have no world: it runs their pytest protocol and is not a rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from disttest.host.descendants import end_new_children, started_children
from disttest.host.process import adopt_orphans, flush_output, leave
from disttest.plugins.contain.fast_spawn import use_fast_spawn
from disttest.plugins.contain.hooks import FAST_SPAWN
from disttest.runtime.messages.protocol import Channel, RunTest, TestDone, clean_text
from disttest.runtime.rank import watchdog
from disttest.runtime.rank.child import redirect_output, register_stacks, use_cuda_freely
from disttest.runtime.rank.rank import run_protocol, save, serve_orders, set_up_child, shared_fixtures
from disttest.runtime.rank.rank_spec import RankSpec


def serve_isolated(
    spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]
) -> None:
    """Run tests until the supervisor ends this process or is gone. Never returns."""
    channel = set_up_child(spec, channel, session.config)
    adopt_orphans()
    use_cuda_freely()
    if FAST_SPAWN.of(spec.settings):
        use_fast_spawn()
    serve_orders(spec, channel, session, lambda order: _run(spec, channel, order, session, items))
    save()
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
    before = started_children()
    run_protocol(items, order)
    left = () if shared_fixtures(session) else end_new_children(before)
    flush_output()
    leaks = (*left, *watchdog.stop_leftover())
    channel.send(TestDone(leaks=tuple(map(clean_text, leaks))))
