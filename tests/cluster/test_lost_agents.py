"""A node whose agent no longer answers, while its ranks may live on: the node is named, and no test is blamed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil
import pytest
from cluster_programs import SPAN, assert_lost, waits
from slurm_cluster import Node, SlurmCluster

from disttest.model import Cause

from .conftest import ClusterLab

SILENCE_S = 8
PAUSE_S = SILENCE_S + 4
"""Longer than the silence limit, and shorter than what the scheduler takes to notice."""


def agent_of(node: Node) -> list[psutil.Process]:
    """The agent on a node and its pytest, without their world and its ranks."""
    below = {each.pid for each in psutil.Process(node.pid).children(recursive=True)}
    found = psutil.process_iter(
        ["cmdline"]
    )  # those of the test before may be zombies, which have no command line
    (command,) = (
        each for each in found if each.pid in below and (each.info["cmdline"] or [])[-1:] == ["node-agent"]
    )
    return [command, *command.children()]


@contextmanager
def stopped(_cluster: SlurmCluster, node: Node) -> Iterator[None]:
    """The agent is stopped until the run has ended."""
    agent = agent_of(node)
    for each in agent:
        each.send_signal(signal.SIGSTOP)
    yield
    for each in agent:
        if each.is_running():
            each.send_signal(signal.SIGCONT)


@contextmanager
def paused(cluster: SlurmCluster, node: Node) -> Iterator[None]:
    """The agent is stopped for a while, and goes on before the run has ended."""
    with stopped(cluster, node):
        time.sleep(PAUSE_S)
    yield


@contextmanager
def unplugged(cluster: SlurmCluster, node: Node) -> Iterator[None]:
    """The node is off the network for a while."""
    with cluster.unplugged(node):
        time.sleep(PAUSE_S)
    yield


@pytest.mark.parametrize("fault", [stopped, paused, unplugged])
def test_the_node_is_to_blame(
    lab: ClusterLab, fault: Callable[[SlurmCluster, Node], AbstractContextManager[None]]
) -> None:
    lab.write(test_waits=waits())
    node = lab.cluster.nodes[1]
    run = lab.on_slurm("test_waits.py", *SPAN, DISTTEST_SILENCE_LIMIT=str(SILENCE_S))
    run.await_file(lab.folder / "here")

    with fault(lab.cluster, node):
        run.wait()

    result = assert_lost(run, f"node lost: node n2 has been silent for {SILENCE_S} s")
    assert result.culprit is None
    assert run.result("test_after[4").cause is Cause.INFRASTRUCTURE
