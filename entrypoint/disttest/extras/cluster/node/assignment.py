"""Find an agent's node and its granted GPUs, from the scheduler's variables and a table of their names."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping

from disttest.errors import UsageError
from disttest.extras.cluster.option_rows import LAUNCHERS
from disttest.extras.cluster.protocol.launcher import NodeVariables
from disttest.extras.cluster.schedulers import scheduler_named
from disttest.model import Frozen

# Slurm writes NoDevFiles if it granted no device; void and none are words of NVIDIA's runtime, -1 of CUDA.
_NO_GPUS = frozenset({"", "NoDevFiles", "void", "none", "-1"})
_UUIDS = ("GPU-", "MIG-")
# From linux/sockios.h; see netdevice(7). Python's socket module has no call for it.
_SIOCGIFADDR = 0x8915


class NodeAssignment(Frozen):
    """Place of an agent in its job."""

    scheduler: str
    node: int
    nodes: int
    host: str
    gpus: tuple[str, ...]
    """Granted GPUs, as ``CUDA_VISIBLE_DEVICES`` names them."""
    address: str
    """Address of this node on the network that connects the nodes."""
    interface: str
    """Network interface with that address."""
    last_word: str = ""
    """File from which the scheduler reads an agent's reason for its end; empty if it reads none."""


def find_assignment(environ: Mapping[str, str]) -> NodeAssignment:
    """Find the assignment.

    Raises:
        UsageError: the variables of a scheduler are missing or invalid.
    """
    # The local scheduler comes first: its agents may run inside an allocation of another one.
    table = [scheduler_named(name).NODE_VARIABLES for name in LAUNCHERS]
    for row in table:
        if _first(environ, row.node) is not None:
            return _read(row, environ)
    names = ", ".join(row.node[0] for row in table)
    raise UsageError(
        f"no scheduler has started this agent (none of {names} is set); it is started by disttest run"
    )


def _read(row: NodeVariables, environ: Mapping[str, str]) -> NodeAssignment:
    node, nodes = _number(environ, row.node), _number(environ, row.nodes)
    if not 0 <= node < nodes:
        raise UsageError(f"{row.node[0]}={node} is not a node of {nodes}")
    address = _first(environ, row.address) or facing(_first(environ, row.peer) or "")
    return NodeAssignment(
        scheduler=row.scheduler,
        node=node,
        nodes=nodes,
        host=_first(environ, row.host) or socket.gethostname(),
        gpus=_gpus(row, environ),
        address=address,
        interface=interface_of(address),
        last_word=_first(environ, row.last_word) or "",
    )


def _gpus(row: NodeVariables, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the granted GPUs as ``CUDA_VISIBLE_DEVICES`` names them here.

    A GPU's number on its node is meaningless in a container that sees no other GPUs; its UUID is valid.
    """
    visible = _first(environ, row.gpus) or ""
    named = () if visible in _NO_GPUS else tuple(visible.split(","))
    if not row.gpu_count:
        return named
    count = _number(environ, row.gpu_count)
    with_uuid = len(named) == count and all(name.startswith(_UUIDS) for name in named)
    return named if with_uuid else tuple(map(str, range(count)))


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int:
    text = _first(environ, names)
    if text is None or not text.isdigit():
        raise UsageError(
            f"{' or '.join(names)} is {text!r}, which is not a number; the scheduler's variables are incomplete"
        )
    return int(text)


def facing(peer: str) -> str:
    """Return the address of this machine that faces ``peer``; loopback if unknown. Sends nothing."""
    if not peer:
        return "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # connect() of a UDP socket only selects the route; no packet is sent.
            probe.connect((peer, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def interface_of(address: str) -> str:
    """Return the interface with an IPv4 address; loopback if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            # struct ifreq: a name of 16 bytes with its final zero; the answer adds a sockaddr_in.
            request = struct.pack("256s", os.fsencode(name)[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # no IPv4 address
            # 16 bytes of the name, 2 of the family, 2 of the port.
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    # For the local scheduler, and for a node whose scheduler names no peer.
    return "lo"
