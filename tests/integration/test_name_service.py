"""No rank asks a name server to find its world: one that never answers would cost each of them ten seconds."""

from __future__ import annotations

import socket

import pytest
from lab import Lab

NAME_SERVER = "127.0.77.53"
"""An address of this machine; the resolver knows no other port than this one."""
PORT = 53
MEET = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.fresh_world
    @pytest.mark.parametrize("number", range(2))
    def test_in_new_processes(world, number):
        dist.all_reduce(torch.ones(1))

    @pytest.mark.world_size(2)
    def test_by_its_own_group(world):
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method="env://")
        dist.all_reduce(torch.ones(1))
"""
ASKS = """
    import socket

    def test_asks():
        socket.getnameinfo(("::ffff:127.0.0.1", 80, 0, 0), socket.NI_NUMERICSERV)
"""


@pytest.fixture
def silent_server():
    """Hears questions and answers none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        try:
            server.bind((NAME_SERVER, PORT))
        except PermissionError:
            pytest.skip(f"only root may listen on port {PORT}")
        server.setblocking(False)
        yield server


def questions(server: socket.socket) -> int:
    found = 0
    while True:
        try:
            server.recv(512)
        except BlockingIOError:
            return found
        found += 1


def run(lab: Lab, file: str):
    """With this name server and no other, in a mount namespace of its own."""
    (lab.folder / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\noptions timeout:1 attempts:1\n")
    mount = 'mount --bind resolv.conf "$(readlink -f /etc/resolv.conf)" && exec "$@"'
    return lab.run(file, wrapper=["unshare", "--mount", "sh", "-c", mount, "sh"])


def test_ranks_find_their_world_by_its_address(lab: Lab, silent_server: socket.socket) -> None:
    ended = run(lab.write(test_meet=MEET), "test_meet.py")

    assert 0 == ended.exit_code, ended.output
    assert 0 == questions(silent_server)
    assert ["", ""] == [ended.log("test_by_its_own_group", rank) for rank in (0, 1)]


def test_a_question_would_be_heard(lab: Lab, silent_server: socket.socket) -> None:
    run(lab.write(test_asks=ASKS), "test_asks.py")

    assert 0 < questions(silent_server)
