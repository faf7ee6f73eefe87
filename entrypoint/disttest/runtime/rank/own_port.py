"""Support for suites that choose a ``MASTER_PORT``: no agent listens there, so rank 0 must host the store."""

from __future__ import annotations

import os
import sys
from typing import Any


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
