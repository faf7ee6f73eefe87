"""Tests that share something with all other processes of the machine."""

import fcntl
import os
import socket
import tempfile
import time
from pathlib import Path

import pytest
import torch.distributed as dist

HOLD_S = 0.3
SHARED = Path(tempfile.gettempdir()) / f"planted-flaky-{os.getuid()}"


def test_port():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 29871))
        server.listen()
        time.sleep(HOLD_S)


def test_file():
    SHARED.mkdir(exist_ok=True)
    path = SHARED / "counter"
    path.write_text(str(os.getpid()))
    time.sleep(HOLD_S)
    assert path.read_text() == str(os.getpid())


def test_lock():
    SHARED.mkdir(exist_ok=True)
    with (SHARED / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(HOLD_S)


@pytest.mark.world_size(2)
def test_socket_of_a_rank(world):
    if world.rank == 0:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("\0planted-flaky")
            time.sleep(HOLD_S)
    dist.barrier()


@pytest.mark.world_size(2)
def test_store(world):
    if world.rank == 0:
        store = dist.TCPStore("127.0.0.1", 29872, is_master=True, wait_for_workers=False)
        store.set("x", "1")
        time.sleep(HOLD_S)
    dist.barrier()
