"""The store in which the ranks of a world meet, served by its own process."""

from __future__ import annotations

import socket
import sys
from typing import Any

from disttest.host.name_service import without_name_service


def has_store() -> bool:
    """Whether this torch can serve one."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available()


def host_store(listener: socket.socket | None) -> Any:
    """Serve the rendezvous on the socket that listened before the first rank was started.

    Nobody picks a port and hopes, and no client knocks before somebody listens (a client that does
    backs off for seconds). The server is a thread of C++, started after the last fork.

    Args:
        listener: None where another node hosts it.

    Returns:
        The store; None where there is none here.
    """
    if listener is None:
        return None
    if not has_store():
        listener.close()
        return None
    import torch.distributed as dist

    host, port = listener.getsockname()[:2]
    with without_name_service():  # it connects to itself
        return dist.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
