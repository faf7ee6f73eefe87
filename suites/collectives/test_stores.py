"""Stores: the keys that ranks meet by. TCP, file, in-process hash, and prefixes on top of each."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from disttest.testing.world import World

from ..ranks import exchange, meet

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]

SHORT = timedelta(milliseconds=50)
KINDS = ["tcp", "file", "prefix-tcp", "prefix-file"]


def _open(world: World, kind: str, folder: Path) -> dist.Store:
    """One store that all ranks share; its TCP server lives in rank 0 on a port that the system picks."""
    if kind.startswith("prefix-"):
        return dist.PrefixStore("below", _open(world, kind.removeprefix("prefix-"), folder))
    if kind == "file":
        return dist.FileStore(str(folder / "store"), world.size)
    if world.is_first:
        server = dist.TCPStore(os.environ["MASTER_ADDR"], 0, is_master=True, wait_for_workers=False)
        exchange(world, server.port)
        return server
    return dist.TCPStore(os.environ["MASTER_ADDR"], exchange(world, None)[0], is_master=False)


@pytest.fixture(params=KINDS)
def shared(request: pytest.FixtureRequest, world: World, world_tmp_path: Path) -> Iterator[dist.Store]:
    """A store of each kind; the server outlives its clients."""
    opened = _open(world, request.param, world_tmp_path)
    yield opened
    meet(world)


def test_every_rank_reads_what_every_rank_wrote(world: World, shared: dist.Store) -> None:
    """Keys of all ranks are there for all ranks, with their values, also binary and empty ones."""
    values = [b"", b"\x00\xff" * 50, b"plain", b"x" * 10_000]
    shared.set(f"key/{world.rank}", values[world.rank % 4])
    shared.wait([f"key/{rank}" for rank in range(world.size)])
    assert [shared.get(f"key/{rank}") for rank in range(world.size)] == [
        values[rank % 4] for rank in range(world.size)
    ]


def test_add_counts_every_rank(world: World, shared: dist.Store) -> None:
    """``add`` is atomic: counts of all ranks add up."""
    for _ in range(20):
        shared.add("count", world.rank + 1)
    meet(world)
    assert shared.add("count", 0) == 20 * world.size * (world.size + 1) // 2


def test_get_waits_for_its_key(world: World, shared: dist.Store) -> None:
    """Reading a key blocks until the last rank writes it."""
    if world.rank == world.size - 1:
        meet(world)
        shared.set("late", "here")
    else:
        assert not shared.check(["late"])
        meet(world)
    assert shared.get("late") == b"here"


def test_missing_key_times_out(world: World, shared: dist.Store) -> None:
    """Waiting for a key that is never written raises after the limit; so does reading one."""
    with pytest.raises(RuntimeError, match="(?i)timeout"):
        shared.wait(["never"], SHORT)
    shared.set_timeout(SHORT)
    with pytest.raises(RuntimeError, match="(?i)timeout"):
        shared.get("never")
    shared.set_timeout(timedelta(seconds=60))
    shared.set("again", "1")
    assert shared.get("again") == b"1"


def test_compare_set(world: World, shared: dist.Store) -> None:
    """The first rank to write wins; a write that expects the present value replaces it, any other does not."""
    first = shared.compare_set("slot", "", str(world.rank))
    meet(world)
    winners = exchange(world, first)
    assert len(set(winners)) == 1
    assert int(winners[0]) in range(world.size)
    assert shared.compare_set("slot", "nobody", "x") == winners[0]
    meet(world)
    if world.is_first:
        assert shared.compare_set("slot", winners[0].decode(), "taken over") == b"taken over"
    meet(world)
    assert shared.get("slot") == b"taken over"


def test_delete(world: World, shared: dist.Store, request: pytest.FixtureRequest) -> None:
    """A deleted key is gone for all ranks; deleting it again says so, but for a file."""
    if world.is_first:
        shared.set("short-lived", "1")
        assert shared.delete_key("short-lived")
        again = shared.delete_key("short-lived")
        assert again == ("file" in request.node.name)  # a file store does not know what was there
    meet(world)
    assert not shared.check(["short-lived"])


def test_prefixes_keep_apart(world: World, shared: dist.Store) -> None:
    """The same key below two prefixes is two keys."""
    one, other = dist.PrefixStore("one", shared), dist.PrefixStore("other", shared)
    if world.is_first:
        one.set("key", "1")
        other.set("key", "2")
    meet(world)
    assert (one.get("key"), other.get("key")) == (b"1", b"2")
    assert not shared.check(["key"])


@pytest.mark.world_size(1)
def test_hash_store() -> None:
    """The store inside one process: values, counts, waiting for another thread, and limits."""
    store = dist.HashStore()
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert (store.add("n", 2), store.add("n", 3)) == (2, 5)
    writer = threading.Thread(target=store.set, args=("late", "here"))
    writer.start()
    assert store.get("late") == b"here"
    writer.join()
    with pytest.raises(RuntimeError, match="(?i)timeout"):
        store.wait(["never"], SHORT)


@pytest.mark.world_size(1)
def test_clone_of_a_tcp_store_shares_its_keys() -> None:
    """A clone sees the original's keys through a separate connection."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("key", "value")
    assert store.clone().get("key") == b"value"
    assert store.num_keys() >= 1


@pytest.mark.world_size(1)
def test_server_on_a_port_in_use() -> None:
    """A second server on the same port is an error that names the address as in use."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(RuntimeError, match="(?i)in use|EADDRINUSE"):
        dist.TCPStore("127.0.0.1", store.port, is_master=True, wait_for_workers=False)
