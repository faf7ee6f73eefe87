"""Connect clients of the world's store without a name server."""

from __future__ import annotations

import functools
import sys
from typing import Any

from disttest.host.name_service import without_name_service
from disttest.runtime.rank.rank_spec import RankSpec


def connect_to_own_store(spec: RankSpec) -> None:
    """Connect future clients of the world's store without a query to a name server.

    torch resolves the name of the peer with each connection, in a form that no ``/etc/hosts`` lists. A name server that
    is slow or drops queries costs five seconds each time: 90 tests in new processes took 9.2 to 10.6 s, and take 5.5 s
    now. Newer versions of torch disable the look-up after a failure, but not after a slow answer:
    https://github.com/pytorch/pytorch/issues/159007. ``RES_OPTIONS`` would take the name servers from tests as well.

    Nothing changes without a store, or if another node may host it: that node may not listen yet.
    """
    dist: Any = sys.modules.get("torch.distributed")
    own = spec.master_address, spec.master_port
    if spec.partition is not None or not spec.master_port or dist is None or not dist.is_available():
        return
    connect = dist.TCPStore.__init__

    @functools.wraps(connect)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        # The names of TCPStore's first two parameters, which pybind11 accepts by position and by name.
        given = dict(zip(("host_name", "port"), args, strict=False)) | kwargs
        # Only for the world's store: a store at another address may need the name service.
        if (given.get("host_name"), given.get("port")) != own:
            connect(self, *args, **kwargs)
            return
        with without_name_service():
            connect(self, *args, **kwargs)

    dist.TCPStore.__init__ = initialise
