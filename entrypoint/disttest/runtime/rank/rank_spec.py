"""Who a rank is, and the environment that says so: torchrun's contract."""

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
    """The part of torchrun's contract that says where a rank is; the rendezvous is the other part.

    Args:
        rank: of the world.
        size: of the world.
        partition: the ranks of this node, in a world that spans several.
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
    """Who this rank is; told by its world when it starts."""

    rank: int
    shape: WorldShape
    world_id: str
    world_pid: int
    master_port: int
    """0: the world hosts no store."""
    devices: tuple[str, ...]
    stacks: Path
    questions: Path
    """Named pipe: whoever writes a path into it gets this rank's collectives there."""
    phases: Path
    """The board on which this rank writes its phase."""
    scratch: Path
    """Base of this rank's ``tmp_path`` directories."""
    log: Path
    """Where output goes until the first test names its own log."""
    settings: WorldSettings
    threads: int
    home: Home = Home(path="")
    """The results directory, for those that supervise ranks of their own."""
    defaults: dict[str, str] = msgspec.field(default_factory=dict)
    """Variables of its environment, unless the user has set them."""
    failed_before: int = 0
    """Tests that have failed in the ranks of this number, in earlier worlds of the run."""
    kind: WorldKind = WorldKind.RANKS
    isolation: Isolation = Isolation.WARM
    """Fresh: it runs one test."""
    partition: NodePartition | None = None
    """None: the whole world is on this machine."""
    settled: dict[str, Any] = msgspec.field(default_factory=dict)
    """Name of a plugin -> its data for every process of the run, as JSON."""
    watches: dict[str, Any] = msgspec.field(default_factory=dict)
    """Name of a plugin that watches the ranks -> data for its part in this one."""

    @property
    def place(self) -> int:
        """Its place among the processes that its world has started."""
        return self.local_rank if self.kind is WorldKind.RANKS else 0

    @property
    def local_rank(self) -> int:
        """Rank among those of this machine."""
        return _local_rank(self.rank, self.partition)

    @property
    def master_address(self) -> str:
        """Where the rendezvous is."""
        return self.partition.address if self.partition else "127.0.0.1"

    def environment(self) -> dict[str, str]:
        """torchrun's contract, and nothing but loopback for worlds on the CPU of one machine."""
        return {
            **place_variables(self.rank, str(self.shape.size), self.partition),
            "ROLE_NAME": "default",
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
            "TORCHELASTIC_USE_AGENT_STORE": str(bool(self.master_port)),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": self.world_id,
            **self.machine_environment(),
        }

    def machine_environment(self) -> dict[str, str]:
        """What every process of a world gets, main processes too."""
        variables = {**visible_devices(",".join(self.shown)), "OMP_NUM_THREADS": str(self.threads)}
        # Ranks that are all on this machine need no real network; those that are not need the one that connects
        # them. Naming it spares gloo and TensorPipe the look-up of the host's name.
        interface = self.partition.interface if self.partition else "lo"
        defaults = {
            "GLOO_SOCKET_IFNAME": interface,
            "TP_SOCKET_IFNAME": interface,
            **plugin_manager().mapping("disttest_rank_environment", str),
            **self.defaults,
        }
        for name, value in defaults.items():
            variables[name] = os.environ.get(name, value)  # noqa: TID251
        return variables

    @property
    def ranks_on_gpu(self) -> int:
        """How many ranks of this world compute on this rank's GPU; 1 on the CPU and on MIG slices."""
        gpus = len(self.devices)
        if not gpus or self.shown != self.devices:
            return 1
        local = self.partition.ranks if self.partition else self.shape.size
        return math.ceil((local - self.local_rank % gpus) / gpus)

    @property
    def shown(self) -> tuple[str, ...]:
        """All of the world's GPUs; of MIG slices its own one, since CUDA shows a process no more than one."""
        slices = any(name.startswith("MIG-") for name in self.devices)
        return (self.devices[self.rank % len(self.devices)],) if slices else self.devices

    def device_index(self, seen: int) -> int:
        """Which of the devices that torch sees is this rank's own.

        Args:
            seen: how many torch sees.

        Raises:
            RuntimeError: those are fewer than the world has.
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
