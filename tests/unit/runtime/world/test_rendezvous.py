"""The rendezvous socket holds the connections of all ranks before any is accepted."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from disttest.runtime.world.store import open_rendezvous

RANKS = 600


def test_all_ranks_of_a_large_world_can_connect_at_once() -> None:
    if int(Path("/proc/sys/net/core/somaxconn").read_text()) < RANKS:
        pytest.skip("the kernel allows fewer connections than this")
    with contextlib.ExitStack() as clients, open_rendezvous() as listener:
        for _ in range(RANKS):
            # A dropped connection would time out, since nothing is accepted here.
            client = socket.create_connection(listener.getsockname(), timeout=20)
            clients.enter_context(client)
