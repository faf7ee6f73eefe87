"""``MultiProcessTestCase`` and ``DistributedTestBase``: one main process and ``world_size`` ranks per test.

The host of this process starts and supervises the ranks (:mod:`.hosting`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
import traceback
import types
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.common_utils import SEED, TestCase, set_rng_seed

from disttest.options.values import check_world_size
from disttest.planning.backends import ANY_CPU_BACKEND, BACKENDS, backend_named
from disttest.results.exit_codes import TEST_ERROR, TEST_SKIPS, ExitRule
from disttest.testing.helpers import FILE_SCHEMA, accelerator_type
from disttest.testing.hosting import RankHandle, RankPipe, current_host

DEFAULT_WORLD_SIZE = 4


def check_method(case: Any, method_name: str, *, explicit: bool) -> Callable[..., Any] | None:
    """Return the test method; None if it is missing and was not named explicitly.

    Raises:
        ValueError: a method was named that does not exist.
    """
    method: Callable[..., Any] | None = getattr(case, method_name, None)
    if method is None and explicit:
        raise ValueError(f"no such test method in {type(case)}: {method_name}")
    return method


class MultiProcessTestCase(TestCase):
    """Base class that runs each test method in ``world_size`` processes. Its ``setUp`` calls ``_spawn_processes``.

    ``setUp`` and ``tearDown`` run in the main process only, whose ``rank`` is ``MAIN_PROCESS_RANK``.
    """

    __disttest_kind__ = "main"
    MAIN_PROCESS_RANK = -1
    TEST_ERROR_EXIT_CODE = TEST_ERROR
    rank: int = MAIN_PROCESS_RANK
    file_name: str

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:  # noqa: N803
        """Accept the test's name by either keyword, and replace the method by one that waits for the ranks."""
        # unittest names this argument `methodName`, and torch's older subclasses pass `method_name`.
        name = methodName if methodName != "runTest" else method_name
        super().__init__(name)
        method = check_method(self, name, explicit=name != "runTest")
        if method is not None:
            setattr(self, name, self.join_or_run(method))

    # --- overridable in subclasses

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return DEFAULT_WORLD_SIZE

    @property
    def destroy_pg_upon_exit(self) -> bool:
        """Whether a rank destroys its process group after its test has passed."""
        return True

    @property
    def init_method(self) -> str:
        """Rendezvous URL of the file that all ranks of the test know."""
        return f"{FILE_SCHEMA}{self.file_name}"

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: RankPipe, **kwargs: Any) -> None:
        """Run the test in a rank. Override it to create a process group first."""
        del kwargs
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        self.run_test(test_name, parent_pipe)

    def run_test(self, test_name: str, parent_pipe: RankPipe) -> None:
        """Run the test method in a rank; exit with a code of the skip table or that of an error on failure."""
        # As in torch: a crash writes its C++ stack into the log of the rank.
        torch._C._set_print_stack_traces_on_fatal_signal(True)
        os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"  # noqa: TID251  # read by torch's C++ code
        set_rng_seed(SEED)
        try:
            getattr(self, test_name)()
        except unittest.SkipTest as skip:
            # The exit code has no room for the reason of the skip.
            parent_pipe.note(skip)
            sys.exit(TEST_SKIPS["generic"].exit_code)  # noqa: TID251
        except Exception as error:  # noqa: BLE001  # any error of the test
            parent_pipe.note(error)
            parent_pipe.send(traceback.format_exc())
            sys.exit(self.TEST_ERROR_EXIT_CODE)  # noqa: TID251
        finally:
            parent_pipe.close()
        # Only after a pass: the exits above leave the group of a failed test, whose peers may never come.
        if self.destroy_pg_upon_exit:
            # torch raises one of these if the test has made no group, or has destroyed it.
            with contextlib.suppress(AssertionError, ValueError):
                dist.destroy_process_group()

    # --- the main process

    def setUp(self) -> None:
        """Prepare for ranks without starting them."""
        super().setUp()
        self.special_return_code_checks: dict[Any, int] = {}
        self.skip_return_code_checks: list[Any] = []
        self.processes: Sequence[RankHandle] = []
        self.pid_to_pipe: dict[int, Any] = {}
        self.rank = self.MAIN_PROCESS_RANK
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self.file_name = file.name

    def tearDown(self) -> None:
        """Drop the ranks, which the host has ended, and remove the rendezvous file."""
        super().tearDown()
        self.processes = []
        Path(self.file_name).unlink(missing_ok=True)

    def _spawn_processes(self) -> None:
        size = check_world_size(int(self.world_size))
        name, file_name, run = self._current_test_name(), self.file_name, type(self)._run
        self.processes = current_host().start(size, lambda rank, pipe: run(rank, name, file_name, pipe))

    def join_or_run(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wait for the ranks in the main process; run the method in a rank."""

        @functools.wraps(fn)
        def wrapper(self: MultiProcessTestCase) -> Any:
            if self.rank == self.MAIN_PROCESS_RANK:
                return self._join_processes(fn)
            return fn()

        return types.MethodType(wrapper, self)

    def _join_processes(self, fn: Callable[..., Any]) -> None:
        current_host().join(
            ExitRule(
                expected=int(self.special_return_code_checks.get(fn, 0)),
                any_code=fn in self.skip_return_code_checks,
            )
        )

    def _current_test_name(self) -> str:
        return self.id().rpartition(".")[2]

    def _should_stop_test_suite(self) -> bool:
        # torch's TestCase asks CUDA after each test whether to stop. The main process does not use CUDA.
        return False

    @property
    def is_master(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0


class DistributedTestBase(MultiProcessTestCase):
    """Base class that starts its ranks in ``setUp``. ``create_pg`` creates the process group for a device."""

    def setUp(self) -> None:
        """Export the world size and start the ranks."""
        super().setUp()
        os.environ["WORLD_SIZE"] = str(self.world_size)  # noqa: TID251  # read by the ranks
        self._spawn_processes()

    def tearDown(self) -> None:
        """Destroy the process group of the main process, if there is one."""
        with contextlib.suppress(AssertionError, ValueError):
            dist.destroy_process_group()
        super().tearDown()

    def backend(self, device: str) -> str:
        """Return the backend for a device type."""
        own = (row.name for row in BACKENDS if any(name in device for name in row.devices))
        return next(own, ANY_CPU_BACKEND)

    def create_pg(self, device: str, world_size: int | None = None) -> dist.ProcessGroup:
        """Create the default group with the rendezvous file, and set each rank's accelerator as its default device.

        Raises:
            RuntimeError: the backend needs an accelerator and the machine has none.
        """
        size = self.world_size if world_size is None else world_size
        backend = self.backend(device)
        store = dist.FileStore(self.file_name, size)  # type: ignore[attr-defined]
        dist.init_process_group(backend, world_size=size, rank=self.rank, store=store)
        if backend_named(backend).needs_accelerator:
            kind = accelerator_type()
            if kind == "cpu":
                raise RuntimeError(f"the backend {backend} needs an accelerator, and this machine has none")
            mine = torch.device(kind, self.rank)
            torch.set_default_device(mine)
            torch.accelerator.set_device_index(mine.index)
        group = dist.group.WORLD
        assert group is not None
        return group

    def rank_to_device(self, device: str) -> dict[int, list[int]]:
        """Map each rank to the index of its device."""
        count = torch.get_device_module(device).device_count()
        return {rank: [rank % count] for rank in range(self.world_size)}
