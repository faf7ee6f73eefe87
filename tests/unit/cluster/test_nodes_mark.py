"""Over how many machines a test's world is spread, and which ports its rendezvous may take."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from disttest.errors import InfrastructureError, UsageError
from disttest.extras.cluster.node.partition import PORT_ATTEMPTS, listen
from disttest.model import WorldShape
from disttest.options.run import RunOptions
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.controller.wanted_worlds import wanted_shapes


class Item:
    """A test as far as its marks go."""

    def __init__(self, *sizes: int, nodes: object = None) -> None:
        self._marks = {"world_size": sizes, **({"nodes": (nodes,)} if nodes is not None else {})}

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(args=self._marks[name], kwargs={}) if name in self._marks else None


def shapes(item: Item, **host: int) -> list[tuple[int, int]]:
    wanted = wanted_shapes(item, RunOptions(), TargetHost(gpus=0, device="cpu", **host))
    return [(shape.size, shape.nodes) for shape in wanted]


def test_the_mark_wins_over_the_run_and_the_run_spreads_what_comes_out_even() -> None:
    assert shapes(Item(4, 6), pool=4) == [(4, 1), (6, 1)]
    assert shapes(Item(4, 6), pool=4, nodes=4) == [(4, 4), (6, 1)]
    assert shapes(Item(4, 6, nodes=2), pool=4) == [(4, 2), (6, 2)]
    assert shapes(Item(4, nodes=1), pool=4, nodes=4) == [(4, 1)]


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (3, "4 ranks cannot be spread evenly over 3 nodes"),
        (0, "nodes mark takes one whole number from 1"),
        ("2", "nodes mark takes one whole number from 1"),
        (True, "nodes mark takes one whole number from 1"),
    ],
)
def test_a_mark_that_makes_no_sense(nodes: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        shapes(Item(4, nodes=nodes))


def test_a_world_over_more_machines_than_there_are_is_skipped_with_the_reason() -> None:
    shape = WorldShape(size=4, backend="gloo", nodes=4)
    assert TargetHost(gpus=0, device="cpu", pool=4).refusal(shape) == ""
    assert "needs 4 nodes for 4xgloo@4nodes, this pool has 2: " in TargetHost(
        gpus=0, device="cpu", pool=2
    ).refusal(shape)
    alone = TargetHost(gpus=0, device="cpu").refusal(shape)
    assert "this machine is one: run it on a cluster (--launcher NAME --nodes N)" in alone


class TestPorts:
    @pytest.fixture
    def taken(self) -> socket.socket:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield server

    def test_the_kernel_chooses_where_none_is_named(self) -> None:
        with listen("127.0.0.1", (0, 0)) as server:
            assert server.getsockname()[1] > 0

    def test_a_port_that_is_taken_is_tried_again(
        self, taken: socket.socket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        port = taken.getsockname()[1]
        monkeypatch.setattr("tenacity.nap.time.sleep", lambda _seconds: taken.close())
        with listen("127.0.0.1", (port, port)) as server:
            assert server.getsockname()[1] == port

    def test_ports_that_stay_taken_are_named(
        self, taken: socket.socket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        port, slept = taken.getsockname()[1], list[float]()
        monkeypatch.setattr("tenacity.nap.time.sleep", slept.append)
        with pytest.raises(
            InfrastructureError, match=f"every port from {port} to {port} of 127.0.0.1 is taken"
        ):
            listen("127.0.0.1", (port, port))
        assert len(slept) == PORT_ATTEMPTS - 1
