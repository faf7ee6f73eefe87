"""The world's store in a rank: a ``MASTER_PORT`` that the suite chooses, and connections without a name server."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from disttest.host.name_service import without_name_service
from disttest.runtime.rank.rank_spec import RankSpec


def follow_own_port(port: int) -> None:
    """Let torch believe in an agent's store only while ``MASTER_PORT`` is that of the world.

    Args:
        port: port of the world's store, which listens already.
    """
    rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
    # With the variable set, torch takes any address for that of the agent's store, and no rank hosts one:
    # https://github.com/pytorch/pytorch/pull/192113
    # The function is private to torch.distributed.rendezvous; a torch without it asks the environment directly.
    asks_for_agent = getattr(rendezvous, "_torchelastic_use_agent_store", None)
    if asks_for_agent is None:
        return

    # torch asks this private function alone (torch 2.9 to 2.15).
    def use_agent_store() -> bool:
        # Called by each init_process_group that reads the environment; a fixture may have changed it just before.
        if os.environ.get("MASTER_PORT") != str(port):  # noqa: TID251
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # noqa: TID251
        return bool(asks_for_agent())

    rendezvous._torchelastic_use_agent_store = use_agent_store  # noqa: SLF001


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
