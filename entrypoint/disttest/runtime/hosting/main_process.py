"""The main process of hosted test classes: runs their pytest protocol, and is no rank itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from disttest.host.process import adopt_orphans, leave
from disttest.results.exit_codes import SKIP_MESSAGES
from disttest.running.bridge import Bridge
from disttest.running.child import redirect_output
from disttest.running.hosting.host import ForkHost
from disttest.running.hosting.torch_bases import host_torch_bases, torch_skips
from disttest.running.phases import PhaseCell
from disttest.running.protocol import Channel, RankReady, RunTest, TestDone
from disttest.running.rank import RankSpec, next_order, own_tmp_path, settle_in, tear_down_rest
from disttest.testing.hosting import provide_host


def serve_main(
    spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]
) -> None:
    """Run tests until told to leave or until the world is gone. Never returns."""
    # One thread: a pool of compute threads in this process would make it unsafe to fork.
    channel = settle_in(msgspec.structs.replace(spec, threads=1), channel, session.config)
    adopt_orphans()
    os.environ.update(spec.machine_environment())  # noqa: TID251
    host = ForkHost(spec, channel, session.config, {**SKIP_MESSAGES, **torch_skips()})
    provide_host(host)
    host_torch_bases(host)
    phase = PhaseCell(spec.phases, spec.place)
    Bridge(channel, session.config, on_phase=phase.write).take_over()
    own_tmp_path(session.config, spec.scratch)
    channel.send(RankReady())
    while (order := next_order(channel)) is not None:
        _run(host, channel, order, session, items)
    tear_down_rest(session)
    host.release(None)
    leave(0)


def _run(
    host: ForkHost,
    channel: Channel,
    order: RunTest,
    session: pytest.Session,
    items: Mapping[str, pytest.Item],
) -> None:
    item = items[order.nodeid]
    following = items.get(order.next_nodeid) if order.next_nodeid else None
    redirect_output(session.config, Path(order.log))
    _forget_instance(item)
    host.begin(order)
    me = os.getpid()
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    if os.getpid() != me:  # the test forked and its copy came back too
        leave(0)
    host.settle()
    sys.stdout.flush()
    sys.stderr.flush()
    channel.send(TestDone())


def _forget_instance(item: pytest.Item) -> None:
    """Have pytest make a new one: the collection may have made it by torch's own constructor, unhosted."""
    vars(item).pop("_instance", None)
    vars(item)["_obj"] = None
