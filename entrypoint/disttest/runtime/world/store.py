"""The rendezvous store of a world, served by the world process."""

from __future__ import annotations

import socket
import sys
from typing import Any

from disttest.host.name_service import without_name_service


def has_store() -> bool:
    """Whether the imported torch can serve a store."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available()


# A port that is picked and released, as other harnesses do, collides with others. This socket never stops listening.
# docs/decisions/0013-world-serves-the-store.md
def open_rendezvous(address: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Open the socket on which a store will be served.

    Args:
        address: address of this machine.
        port: the port; 0 for the kernel's choice.
    """
    # The backlog holds the connections of all ranks until the store accepts them. The kernel drops those beyond it, and
    # each dropped one is tried again a second later. The kernel's own limit is usually 4,096 as well.
    return socket.create_server((address, port), backlog=4096)


def host_store(listener: socket.socket | None) -> Any:
    """Serve the rendezvous store on a socket that has listened since before the first rank started.

    No process guesses a free port, and no client connects before the server listens; torch's client would back off for
    seconds. The server is a C++ thread, started after the last fork.

    Args:
        listener: the listening socket; None where another node hosts the store.

    Returns:
        The store; None where this process serves none.
    """
    if listener is None:
        return None
    if not has_store():
        listener.close()
        return None
    import torch.distributed as dist

    host, port = listener.getsockname()[:2]
    # The server connects to itself, and torch resolves the peer's name with each connection.
    with without_name_service():
        # Ranks connect with TORCHELASTIC_USE_AGENT_STORE, as under torchrun, so rank 0 does not serve a
        # second store. The server does not wait for them: they connect in their tests, and some never do.
        return dist.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
