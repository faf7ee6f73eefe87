"""A ``MASTER_PORT`` that a suite has chosen for itself: nobody listens there, so rank 0 has to, as where there is no agent."""

from __future__ import annotations

import os
import sys
from typing import Any


def heed_own_port(port: int) -> None:
    """From now on torch is told that an agent hosts the store only where this is so.

    Args:
        port: of the world's store, which listens already.
    """
    rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
    asks_for_agent = getattr(rendezvous, "_torchelastic_use_agent_store", None)
    if asks_for_agent is None:
        return

    def use_agent_store() -> bool:
        # Asked by each init_process_group that reads the environment, which a fixture may have set a moment before.
        if os.environ.get("MASTER_PORT") != str(port):  # noqa: TID251
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # noqa: TID251
        return bool(asks_for_agent())

    rendezvous._torchelastic_use_agent_store = use_agent_store  # noqa: SLF001
