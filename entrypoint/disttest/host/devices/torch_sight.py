"""What torch sees from a process that has imported it and must stay fit to be forked, and whether its forks see that, too."""

from __future__ import annotations

from typing import NamedTuple

from disttest.host.devices.torch_facts import TorchFacts, ask_in_fork, ask_torch
from disttest.host.fork_hazard import fork_hazard


class TorchSight(NamedTuple):
    """What came of a look."""

    torch: TorchFacts
    by_forks: bool
    """Whether forks of this process can use the devices."""
    trouble: str = ""
    """What keeps them from it, in torch's words, where nothing else had announced it; the devices are in order."""


def look_at_devices() -> TorchSight:
    """Ask a fork of this process, and a new interpreter where none can be asked, or the fork fails: the devices, or this process?

    No fork can where an import has used CUDA (a ``sitecustomize`` that asks for GPUs) or left threads.
    """
    if fork_hazard(on_gpus=True):
        return TorchSight(ask_torch(), by_forks=False)
    seen = ask_in_fork()
    if not seen.error:
        return TorchSight(seen, by_forks=True)
    torch = ask_torch()
    return TorchSight(torch, by_forks=False, trouble="" if torch.error else seen.error)
