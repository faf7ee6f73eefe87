"""The main process of hosted test classes. It runs their pytest protocol and is not a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from _pytest.unittest import TestCaseFunction

from disttest.host.process import adopt_orphans, flush_output, leave
from disttest.plugins.launching_classes.launching_classes import host_launching_classes
from disttest.plugins.launching_classes.rank_host import ForkHost
from disttest.plugins.launching_classes.torch_bases import host_torch_bases
from disttest.plugins.launching_classes.torch_module import torch_skips
from disttest.results.exit_codes import SKIP_MESSAGES
from disttest.runtime.controller.wanted_worlds import ranks_may_differ
from disttest.runtime.messages.protocol import Channel, RunTest, TestDone
from disttest.runtime.rank import watchdog
from disttest.runtime.rank.child import redirect_output
from disttest.runtime.rank.rank import run_protocol, save, serve_orders, set_up_child
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.testing.hosting import provide_host


def serve_main(
    spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]
) -> None:
    """Run tests until the world ends this process or is gone. Never returns."""
    # One thread: a pool of compute threads in this process would make forking unsafe.
    channel = set_up_child(msgspec.structs.replace(spec, threads=1), channel, session.config)
    adopt_orphans()
    os.environ.update(spec.machine_environment())  # noqa: TID251
    host = ForkHost(spec, channel, session.config, {**SKIP_MESSAGES, **torch_skips()})
    provide_host(host)
    host_torch_bases(host)
    host_launching_classes((cls for item in items.values() if (cls := getattr(item, "cls", None))), host)
    serve_orders(spec, channel, session, lambda order: _run(host, channel, order, session, items))
    host.release(None)
    save()
    leave(0)


def _run(
    host: ForkHost,
    channel: Channel,
    order: RunTest,
    session: pytest.Session,
    items: Mapping[str, pytest.Item],
) -> None:
    item = items[order.nodeid]
    redirect_output(session.config, Path(order.log))
    _forget_instance(item)
    host.begin(order, may_differ=ranks_may_differ(item), is_torchs=isinstance(item, TestCaseFunction))
    run_protocol(items, order)
    host.settle()
    flush_output()
    channel.send(TestDone(plugin_error=save(), leaks=watchdog.stop_leftover()))


def _forget_instance(item: pytest.Item) -> None:
    """Have pytest create a new instance: the collection may have used torch's own constructor."""
    vars(item).pop("_instance", None)
    vars(item)["_obj"] = None
