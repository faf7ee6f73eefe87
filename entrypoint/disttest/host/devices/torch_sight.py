"""Devices that torch sees, asked from a process that has imported torch and must stay fit to be forked."""

from __future__ import annotations

from typing import NamedTuple

from disttest.host.devices.torch_facts import TorchFacts, ask_in_fork, ask_torch
from disttest.host.fork_hazard import fork_hazard


class TorchSight(NamedTuple):
    """The result of asking torch."""

    torch: TorchFacts
    by_forks: bool
    """Whether forks of this process can use the devices."""
    # The devices themselves work.
    trouble: str = ""
    """torch's message about why forks cannot use them, if no other check had found a reason."""


def look_at_devices() -> TorchSight:
    """Ask a fork of this process; ask a new interpreter if forking is unsafe or the fork fails."""
    # A new interpreter shows whether the devices or this process are at fault. Forking is unsafe after an import has
    # used CUDA (a ``sitecustomize`` that looks for GPUs) or has left threads.
    if fork_hazard(on_gpus=True):
        return TorchSight(ask_torch(), by_forks=False)
    seen = ask_in_fork()
    if not seen.error:
        return TorchSight(seen, by_forks=True)
    torch = ask_torch()
    return TorchSight(torch, by_forks=False, trouble="" if torch.error else seen.error)
