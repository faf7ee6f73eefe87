"""Base classes of distributed Dynamo tests. They choose device and backend themselves: gloo on the CPU."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo
import torch._dynamo.test_case
import torch.distributed as dist

from disttest.testing.helpers import accelerator_type, find_free_port
from disttest.testing.hosting import RankPipe
from disttest.testing.processes import DistributedTestBase

_CPU_RANKS = 2
_LOOPBACK = "127.0.0.1"
PORT_VARIABLE = "MASTER_PORT"


@contextlib.contextmanager
def _dynamo_dist_per_rank_init(
    rank: int,
    world_size: int,
    backend: str | None = None,
    init_pg: bool = True,
    fake_pg: bool = False,
    *,
    port: int | None = None,
) -> Iterator[None]:
    """Set up a rank's device and process group, with Dynamo reset before and after.

    Args:
        rank: this rank.
        world_size: number of ranks.
        backend: name of the backend; None for that of the device type.
        init_pg: whether to create the group.
        fake_pg: whether the group is torch's fake one, of a single process.
        port: rendezvous port, chosen in the main process (:class:`DynamoDistributedMultiProcTestCase` exports it),
            so that two tests can run on one machine.
    """
    device = accelerator_type()
    if not fake_pg and device != "cpu":
        torch.accelerator.set_device_index(rank)
    os.environ["MASTER_ADDR"] = _LOOPBACK  # noqa: TID251  # rendezvous by env://
    if port is not None:
        os.environ[PORT_VARIABLE] = str(port)  # noqa: TID251
    if init_pg:
        _init_group(rank, world_size, backend or dist.get_default_backend_for_device(device), fake=fake_pg)
    _reset()
    try:
        yield
    finally:
        _reset()
        if init_pg:
            dist.destroy_process_group()


def _init_group(rank: int, world_size: int, backend: str, *, fake: bool) -> None:
    if not fake:
        dist.init_process_group(backend, rank=rank, world_size=world_size)
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())


def _reset() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


class DynamoDistributedSingleProcTestCase(torch._dynamo.test_case.TestCase):
    """Base class with a process group of one rank for the whole class."""

    rank: int = 0
    device: str
    device_ids: list[int] | None
    _exit_stack: Any

    @classmethod
    def setUpClass(cls) -> None:
        """Create the group."""
        super().setUpClass()
        where = {"MASTER_ADDR": _LOOPBACK, PORT_VARIABLE: str(find_free_port())}
        cls._exit_stack.enter_context(patch.dict(os.environ, where))  # noqa: TID251  # for the class only
        cls.rank = 0
        device = accelerator_type()
        cls.device = "cpu" if device == "cpu" else f"{device}:{cls.rank}"
        cls.device_ids = None
        dist.init_process_group(dist.get_default_backend_for_device(device), rank=cls.rank, world_size=1)

    @classmethod
    def tearDownClass(cls) -> None:
        """Destroy the group of this class."""
        dist.destroy_process_group()
        super().tearDownClass()


class DynamoDistributedMultiProcTestCase(DistributedTestBase):
    """Base class with one rank for each accelerator, or two without any."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(torch.accelerator.device_count()) or _CPU_RANKS

    def setUp(self) -> None:
        """Choose the port here, so that all ranks inherit it."""
        os.environ[PORT_VARIABLE] = str(find_free_port())  # noqa: TID251  # the contract with the ranks
        super().setUp()

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: RankPipe, **kwargs: Any) -> None:
        # As in torch: with a handler, Dynamo builds its structured trace, so that tests execute that code,
        # too.
        logging.getLogger("torch.__trace").addHandler(logging.NullHandler())
        super()._run(rank, test_name, file_name, parent_pipe, **kwargs)
