"""Connections to the store of the rank's own world, whoever makes them: the server is there, and its address needs no name."""

from __future__ import annotations

import functools
import sys
from typing import Any

from disttest.host.name_service import without_name_service


def reach_own_store(host: str, port: int) -> None:
    """From now on clients of this store are connected without a question to a name server.

    Args:
        host: an address of this machine, as it stands in ``MASTER_ADDR``.
        port: of the world's store, which listens; 0: it has none.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if not port or dist is None or not dist.is_available():
        return
    connect = dist.TCPStore.__init__

    @functools.wraps(connect)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(("host_name", "port"), args, strict=False)) | kwargs
        if (given.get("host_name"), given.get("port")) != (host, port):
            connect(self, *args, **kwargs)
            return
        with without_name_service():
            connect(self, *args, **kwargs)

    dist.TCPStore.__init__ = initialise
