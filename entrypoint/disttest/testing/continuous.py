"""``MultiProcContinuousTest``: one set of ranks and one process group for the tests of a whole class.

After a failing test its ranks are replaced; the rest of the class runs in the new ones.
"""

from __future__ import annotations

import functools
import os
import tempfile
import types
import unittest
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.common_utils import SEED, TestCase, set_rng_seed

from disttest.options.values import check_world_size
from disttest.planning.backends import BACKENDS
from disttest.testing.helpers import accelerator_type
from disttest.testing.hosting import current_host
from disttest.testing.processes import check_method

UNSET = -2


class MultiProcContinuousTest(TestCase):
    """Base class whose test methods run in ranks that live as long as the class. The main process dispatches them."""

    __disttest_kind__ = "main"
    MAIN_PROCESS_RANK = -1
    world_size: int = UNSET
    """Unset means one rank for each device of the device type."""
    rank: int = UNSET
    rdvz_file: str | None = None
    timeout: timedelta = timedelta(seconds=120)
    """Time limit of the process group."""
    pg: dist.ProcessGroup

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:  # noqa: N803
        """Accept the test's name by either keyword, and replace the method by one that dispatches it."""
        # unittest names this argument `methodName`, and torch's older subclasses pass `method_name`.
        name = methodName if methodName != "runTest" else method_name
        super().__init__(name)
        method = check_method(self, name, explicit=name != "runTest")
        if method is not None:
            setattr(self, name, self._dispatch_or_run(method))

    # --- overridable in subclasses

    @classmethod
    def backend_str(cls) -> str | None:
        """Return the backend; None lets the device of each tensor decide."""
        return None

    @classmethod
    def device_type(cls) -> str:
        """Return the accelerator's type, or ``cpu``."""
        return accelerator_type()

    @classmethod
    def opts(cls, high_priority_stream: bool = False) -> Any:
        """Return the options of the process group."""
        del high_priority_stream

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        os.environ["LOCAL_RANK"] = str(rank)  # noqa: TID251  # read by device meshes
        dist.init_process_group(
            cls.backend_str(),
            world_size=world_size,
            rank=rank,
            store=dist.FileStore(rdvz_file, world_size),  # type: ignore[attr-defined]
            pg_options=cls.opts(),
            timeout=cls.timeout,
        )
        group = dist.group.WORLD
        assert group is not None
        cls.pg = group

    # --- the main process

    def setUp(self) -> None:
        """Start ranks, or keep the present ones if they are healthy."""
        super().setUp()
        self.rank = self.MAIN_PROCESS_RANK
        cls = type(self)
        size = cls._size()
        _need_backend(cls.backend_str())

        def prepare(rank: int) -> None:
            cls.rank, cls.world_size = rank, size
            assert cls.rdvz_file is not None
            cls._init_pg(rank, size, cls.rdvz_file)

        if not current_host().keeps(cls):
            cls._new_rendezvous()
        current_host().keep(cls, size, prepare, cls._run_test_given_id)

    @classmethod
    def tearDownClass(cls) -> None:
        """Let the ranks exit; kill those that do not."""
        current_host().release(cls)
        cls._remove_rendezvous()
        super().tearDownClass()

    @classmethod
    def _new_rendezvous(cls) -> None:
        """Create a new rendezvous file for each set of ranks: keys of dead ranks would mislead the next ones."""
        cls._remove_rendezvous()
        with tempfile.NamedTemporaryFile(delete=False) as file:
            cls.rdvz_file = file.name

    @classmethod
    def _remove_rendezvous(cls) -> None:
        if cls.rdvz_file is not None:
            Path(cls.rdvz_file).unlink(missing_ok=True)
            cls.rdvz_file = None

    @classmethod
    def _size(cls) -> int:
        declared: Any = cls.world_size
        # Subclasses declare the size as a value or as a property. No instance exists here, and making one
        # needs a test's name.
        if isinstance(declared, property):
            declared = declared.__get__(object.__new__(cls))
        if declared != UNSET:
            return check_world_size(declared)
        declared_type: Any = cls.device_type
        device = declared_type() if callable(declared_type) else declared_type
        count = int(torch.get_device_module(device).device_count())
        if count == 0:
            raise unittest.SkipTest(f"No {device} devices available")
        return count

    def _dispatch_or_run(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(self: MultiProcContinuousTest) -> Any:
            if self.rank == self.MAIN_PROCESS_RANK:
                return current_host().run_kept(type(self), self.id())
            return fn()

        return types.MethodType(wrapper, self)

    # --- a rank

    @classmethod
    def _run_test_given_id(cls, test_id: str, **kwargs: Any) -> None:
        name = test_id.rpartition(".")[2]
        self = cls(name)
        self.rank = cls.rank
        set_rng_seed(SEED)
        getattr(self, name)(**kwargs)


def _need_backend(backend: str | None) -> None:
    if backend in {row.name for row in BACKENDS} and not dist.is_backend_available(backend):
        raise unittest.SkipTest(f"Backend '{backend}' is not available")


MultiProcContinousTest = MultiProcContinuousTest
"""The spelling of torch up to 2.6."""
