"""Connections to the store of the rank's own world, whoever makes them: the server is there, and its address needs no name."""

from __future__ import annotations

import functools
import sys
from typing import Any

from disttest.host.name_service import without_name_service
from disttest.runtime.rank.rank_spec import RankSpec


def reach_own_store(spec: RankSpec) -> None:
    """From now on clients of the world's store are connected without a question to a name server.

    Nothing changes where it has none, or where another node may host it, which perhaps does not listen yet.
    """
    dist: Any = sys.modules.get("torch.distributed")
    own = spec.master_address, spec.master_port
    if spec.partition is not None or not spec.master_port or dist is None or not dist.is_available():
        return
    connect = dist.TCPStore.__init__

    @functools.wraps(connect)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(("host_name", "port"), args, strict=False)) | kwargs
        if (given.get("host_name"), given.get("port")) != own:
            connect(self, *args, **kwargs)
            return
        with without_name_service():
            connect(self, *args, **kwargs)

    dist.TCPStore.__init__ = initialise
