"""Hooks of runs on the nodes of a cluster."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click
    import pytest

    from disttest.cli.run_request import RunRequest
    from disttest.options.option import Option


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
    from disttest.extras.cluster.place import choose_nodes

    nodes = choose_nodes(request)
    return dataclasses.replace(request, place=nodes) if nodes else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with the order for a node's controller."""
    parser.getgroup("disttest").addoption(
        "--disttest-node-partition",
        dest="disttest_node_partition",
        help=argparse.SUPPRESS,
    )


@hookimpl
def disttest_run_session(session: pytest.Session) -> bool | None:
    """Run the controller of a node's part of worlds that span nodes."""
    order = session.config.getoption("disttest_node_partition")
    if not order:
        return None
    from disttest.extras.cluster.node.partition import serve_partition
    from disttest.runtime.controller.session import RUN

    serve_partition(session, session.config.stash[RUN], Path(order))
    return True
