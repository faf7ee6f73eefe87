"""Specification of a rank, and the environment that describes it to the test: torchrun's contract."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import msgspec

from disttest.model import Frozen, Isolation, WorldKind, WorldShape
from disttest.options.run import WorldSettings
from disttest.planning.backends import visible_devices
from disttest.plugin_manager import plugin_manager
from disttest.results.directory import Home
from disttest.runtime.messages.protocol import NodePartition


def place_variables(rank: int, size: str, partition: NodePartition | None = None) -> dict[str, str]:
    """Return the variables of torchrun's contract that place a rank; those of the rendezvous are separate.

    Args:
        rank: rank in the world.
        size: size of the world.
        partition: the ranks of this node, if the world spans several nodes.
    """
    node = str(partition.node) if partition else "0"
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(_local_rank(rank, partition)),
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": str(partition.ranks) if partition else size,
        "GROUP_RANK": node,
        "NODE_RANK": node,
        "GROUP_WORLD_SIZE": str(partition.nodes) if partition else "1",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": size,
    }


def _local_rank(rank: int, partition: NodePartition | None) -> int:
    return rank - (partition.first_rank if partition else 0)


class RankSpec(Frozen):
    """Specification of one rank, written by its world when the rank starts."""

    rank: int
    shape: WorldShape
    world_id: str
    world_pid: int
    master_port: int
    """Port of the world's store; 0 if the world serves none."""
    devices: tuple[str, ...]
    stacks: Path
    questions: Path
    """Named pipe: a process that writes a path into it gets this rank's collectives there."""
    phases: Path
    """Shared page in which this rank writes its phase."""
    scratch: Path
    """Base of this rank's ``tmp_path`` directories."""
    log: Path
    """Output file until the first test names a log."""
    settings: WorldSettings
    threads: int
    home: Home = Home(path="")
    """The results directory, for processes that supervise ranks."""
    defaults: dict[str, str] = msgspec.field(default_factory=dict)
    """Environment variables, which a value set by the user overrides."""
    failed_before: int = 0
    """Tests that failed in this rank number in earlier worlds of the run."""
    kind: WorldKind = WorldKind.RANKS
    isolation: Isolation = Isolation.WARM
    """``FRESH`` if the process runs a single test."""
    partition: NodePartition | None = None
    """None if the whole world is on this machine."""
    settled: dict[str, Any] = msgspec.field(default_factory=dict)
    """Plugin name -> its JSON data for every process of the run."""
    watches: dict[str, Any] = msgspec.field(default_factory=dict)
    """Plugin name -> data of its watch for this rank."""

    @property
    def place(self) -> int:
        """Index of this process among those that its world started."""
        return self.local_rank if self.kind is WorldKind.RANKS else 0

    @property
    def local_rank(self) -> int:
        """Rank among those of this machine."""
        return _local_rank(self.rank, self.partition)

    @property
    def master_address(self) -> str:
        """Address of the rendezvous store."""
        return self.partition.address if self.partition else "127.0.0.1"

    def environment(self) -> dict[str, str]:
        """Return torchrun's contract, with the loopback interface for worlds on one machine."""
        return {
            **place_variables(self.rank, str(self.shape.size), self.partition),
            "ROLE_NAME": "default",
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
            # torch compares the value with `str(True)`. Any other text makes rank 0 serve a store itself.
            "TORCHELASTIC_USE_AGENT_STORE": str(bool(self.master_port)),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": self.world_id,
            **self.machine_environment(),
        }

    def machine_environment(self) -> dict[str, str]:
        """Return the variables that every process of a world gets, main processes included."""
        variables = visible_devices(",".join(self.shown))
        # Ranks on one machine need only the loopback interface; others need the one that connects the nodes. With
        # a name, gloo and TensorPipe skip the look-up of the host's name.
        interface = self.partition.interface if self.partition else "lo"
        defaults = {
            "OMP_NUM_THREADS": str(self.threads),
            "GLOO_SOCKET_IFNAME": interface,
            "TP_SOCKET_IFNAME": interface,
            # The user's own values win below: `os.environ` is consulted first.
            **plugin_manager().mapping("disttest_rank_environment", str, shape=self.shape),
            **self.defaults,
        }
        for name, value in defaults.items():
            variables[name] = os.environ.get(name, value)  # noqa: TID251
        return variables

    @property
    def ranks_on_gpu(self) -> int:
        """Number of ranks of this world on this rank's GPU; 1 on the CPU and on MIG slices."""
        gpus = len(self.devices)
        if not gpus or self.shown != self.devices:
            return 1
        local = self.partition.ranks if self.partition else self.shape.size
        # Ranks are assigned to GPUs in turn, so the first GPUs have one rank more if the division is uneven.
        return math.ceil((local - self.local_rank % gpus) / gpus)

    @property
    def shown(self) -> tuple[str, ...]:
        """GPUs that this rank may see: all of the world's; of MIG slices one, since CUDA shows a process only one."""
        slices = any(name.startswith("MIG-") for name in self.devices)
        return (self.devices[self.rank % len(self.devices)],) if slices else self.devices

    def device_index(self, seen: int) -> int:
        """Return the index of this rank's device among those that torch sees.

        Args:
            seen: number of devices that torch sees.

        Raises:
            RuntimeError: torch sees fewer devices than the world has.
        """
        shown = self.shown
        if seen < max(1, len(shown)):
            own = shown[self.local_rank % len(shown)] if shown else str(self.local_rank)
            name = own if own.startswith(("GPU-", "MIG-")) else f"GPU {own}"
            raise RuntimeError(
                f"{name} is missing: torch sees {seen} of the {max(1, len(shown))} GPUs of this world; "
                "disttest doctor says which GPUs work"
            )
        return self.local_rank % seen
