"""Hooks of runs on the nodes of a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from disttest.extras.cluster import NAME
from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click
    import pytest

    from disttest.cli.run_request import RunRequest
    from disttest.options.option import Option
    from disttest.runtime.controller.session import TestSelection


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Option ``--launcher`` and the options that belong to it."""
    from disttest.extras.cluster.option_rows import OPTIONS

    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest cluster-clean``, and the command that a scheduler starts on each node."""
    from disttest.extras.cluster.command import cluster_clean, node_agent

    group.add_command(node_agent)
    group.add_command(cluster_clean)


@hookimpl
def disttest_prepare_run(request: RunRequest) -> RunRequest | None:
    """Run on the nodes of the scheduler that ``--launcher`` or the shard of a plan names."""
    from disttest.extras.cluster.place import choose_nodes, read_assigned

    nodes, tests = choose_nodes(request), read_assigned(request)
    if tests is not None:
        request = dataclasses.replace(request, data={**request.data, NAME: tests})
    return dataclasses.replace(request, place=nodes) if nodes else request


@hookimpl
def disttest_select_tests(items: Sequence[pytest.Item], config: pytest.Config) -> TestSelection | None:
    """Select the tests of a job."""
    from disttest.runtime.controller.orders import order_of

    tests = order_of(config).shared.data.get(NAME)
    if tests is None:
        return None
    from disttest.runtime.controller.session import TestSelection
    from disttest.runtime.messages.protocol import clean_text

    # The client has the names from a journal, in which secrets are hidden.
    wanted = frozenset(tests)
    return TestSelection(kept=frozenset(item.nodeid for item in items if clean_text(item.nodeid) in wanted))


@hookimpl
def disttest_run_session(session: pytest.Session) -> bool | None:
    """Run the controller of a node's part of worlds that span nodes."""
    from disttest.runtime.controller.orders import from_data, plugin_work

    work = plugin_work(session.config, NAME)
    if work is None:
        return None
    from disttest.extras.cluster.node.partition import PartitionOrder, serve_partition
    from disttest.runtime.controller.session import RUN

    serve_partition(session, session.config.stash[RUN], from_data(work, PartitionOrder))
    return True
