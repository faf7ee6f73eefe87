"""``MultiThreadedTestCase`` and ``spawn_threads_and_init_comms``: ranks that are threads of one process.

The group is torch's own threaded one (``multi_threaded_pg``), because its collectives follow torch's releases. A
thread that never ends does not block the test: the report has its stack.
"""

from __future__ import annotations

import functools
import os
import queue
import sys
import threading
import traceback
import types
import unittest
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed import multi_threaded_pg as threaded

from disttest.clock import monotonic
from disttest.options.values import check_world_size
from disttest.results.exit_codes import SKIP_MESSAGES, TEST_SKIPS
from disttest.testing.helpers import TIMEOUT_DEFAULT
from disttest.testing.hosting import report_rank_threads
from disttest.testing.processes import DEFAULT_WORLD_SIZE, check_method

Failure = tuple[int, tuple[Any, Any, Any]]
"""A rank and its ``exc_info``."""


class ThreadedWorld:
    """The threads of one test: started together, joined within one time limit, evaluated together."""

    def __init__(self, body: Callable[[int, Any], None], size: int) -> None:
        # torch's threaded group has no public interface.
        torch._C._distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]
        _complete_threaded_world()
        threaded._install_threaded_pg()
        store = dist.HashStore()  # type: ignore[attr-defined]
        self.failures: queue.Queue[Failure] = queue.Queue()
        self.threads = [
            # Daemons: a thread that hangs in C++ must not keep the process from its end.
            threading.Thread(target=self._run, args=(body, rank, store), name=f"rank {rank}", daemon=True)
            for rank in range(size)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, body: Callable[[int, Any], None], rank: int, store: Any) -> None:
        try:
            body(rank, store)
        except BaseException as error:  # noqa: BLE001  # passed to the waiting thread
            self.failures.put((rank, sys.exc_info()))
            # Wakes the threads that wait for this one in a collective: they would wait until their limit.
            threaded.ProcessLocalGroup.exception_handle(error)

    def join(self, limit_s: float) -> None:
        """Wait for all threads, uninstall the threaded group, and raise their failure.

        Raises:
            RuntimeError: a thread failed or did not end within the time limit.
            unittest.SkipTest: a thread skipped and none failed.
        """
        deadline = monotonic() + limit_s
        try:
            # The deadline is common, so the limit does not grow with the number of threads.
            for thread in self.threads:
                thread.join(max(0.0, deadline - monotonic()))
            stuck = [rank for rank, thread in enumerate(self.threads) if thread.is_alive()]
            stacks = [self._stack(rank) for rank in stuck]
        finally:
            threaded.ProcessLocalGroup.reset()
            threaded._uninstall_threaded_pg()
            torch._C._distributed_c10d._set_thread_isolation_mode(False)  # type: ignore[attr-defined]
        failures = [self.failures.get() for _ in range(self.failures.qsize())]
        for rank, stack in zip(stuck, stacks, strict=True):
            error = RuntimeError(f"Thread {rank} terminated or timed out after {limit_s:g} seconds\n{stack}")
            failures.append((rank, (RuntimeError, error, None)))
        # Before `evaluate`, which raises and joins the outcomes of all threads.
        report_rank_threads(len(self.threads), [(rank, exc_info[1]) for rank, exc_info in failures])
        evaluate(failures)

    def _stack(self, rank: int) -> str:
        frame = sys._current_frames().get(self.threads[rank].ident or 0)
        return f"Stack of thread {rank}:\n{''.join(traceback.format_stack(frame))}" if frame else ""


def evaluate(failures: Sequence[Failure]) -> None:
    """Raise the outcome of the threads. An error takes precedence over a skip.

    Args:
        failures: the threads that did not return, in order of time.

    Raises:
        RuntimeError: one or more threads failed; the text has each one's traceback.
        unittest.SkipTest: one or more skipped.
    """
    errors, skip = [], None
    first = failures[0][1][1] if failures else None
    # Unless it is the first, torch has woken a thread that exits with a text: another one had failed.
    if isinstance(first, SystemExit) and isinstance(first.code, str):
        errors.append(f"Thread {failures[0][0]} exited: {first.code}\n")
    # Threads that did not end have no traceback. They come last, because they may wait for one that has failed.
    for rank, exc_info in sorted(failures, key=lambda failure: (failure[1][2] is None, failure[0])):
        error = exc_info[1]
        if isinstance(error, unittest.SkipTest):
            skip = skip or str(error) or TEST_SKIPS["generic"].message
        elif isinstance(error, SystemExit):
            # `sys.exit` accepts any object, such as a list, which cannot be a key.
            skip = skip or SKIP_MESSAGES.get(error.code if isinstance(error.code, int) else -1)
            if _is_bad_exit(error):
                errors.append(f"Thread {rank} exited with code {error.code}\n")
        else:
            text = "".join(traceback.format_exception(*exc_info))
            errors.append(f"Thread {rank} exited with exception:\n{text}\n")
    if errors:
        raise RuntimeError("".join(errors))
    if skip:
        raise unittest.SkipTest(skip)


def _is_bad_exit(request: SystemExit) -> bool:
    """Return whether an exit code is an error and no skip."""
    return isinstance(request.code, int) and request.code != 0 and request.code not in SKIP_MESSAGES


def _complete_threaded_world() -> None:
    """Add ``comms`` to torch's threaded world, which ``destroy_process_group`` of torch 2.11 and later reads."""
    world: Any = threaded.ThreadLocalWorld
    if not hasattr(world, "comms"):
        world.comms = property(lambda self: vars(self._get_world()).setdefault("comms", []))


def spawn_threads_and_init_comms(
    func: Callable[..., Any] | None = None,
    timeout: float = TIMEOUT_DEFAULT,
    world_size: int = DEFAULT_WORLD_SIZE,
) -> Any:
    """Run the test in a number of threads, each with the threaded process group. Use it bare or with arguments."""
    if func is None:
        return functools.partial(spawn_threads_and_init_comms, timeout=timeout, world_size=world_size)

    @functools.wraps(func)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        def body(rank: int, store: Any) -> None:
            dist.init_process_group("threaded", rank=rank, world_size=world_size, store=store)
            try:
                func(self, *args, **kwargs)
            finally:
                dist.destroy_process_group()

        ThreadedWorld(body, check_world_size(world_size)).join(timeout)

    return wrapper


class MultiThreadedTestCase(TestCase):
    """Base class that runs each test method in ``world_size`` threads."""

    # A subclass calls ``_spawn_threads`` in ``setUp``.

    __disttest_kind__ = "threads"
    MAIN_THREAD_RANK = -1
    rank: int = MAIN_THREAD_RANK

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:  # noqa: N803
        """Accept the test's name by either keyword, and replace the method by one that waits for the threads."""
        name = methodName if methodName != "runTest" else method_name
        super().__init__(name)
        method = check_method(self, name, explicit=name != "runTest")
        if method is not None:
            setattr(self, name, self.join_or_run(method))

    @property
    def world_size(self) -> int:
        """Number of threads."""
        return DEFAULT_WORLD_SIZE

    @property
    def timeout_s(self) -> float:
        """Time limit of all threads together, in seconds."""
        return TIMEOUT_DEFAULT

    def perThreadSetUp(self) -> None:  # noqa: N802  # torch's name
        """Run before the test in each thread."""

    def perThreadTearDown(self) -> None:  # noqa: N802  # torch's name
        """Run after the test in each thread."""

    def setUp(self) -> None:
        """Prepare in the main thread only."""
        super().setUp()
        self.rank = self.MAIN_THREAD_RANK
        self._threaded_world: ThreadedWorld | None = None
        os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"  # noqa: TID251  # read by torch's C++ code

    def tearDown(self) -> None:
        """Clean up in the main thread only."""
        super().tearDown()
        self._threaded_world = None

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The threads of the running test."""
        return self._threaded_world.threads if self._threaded_world else ()

    def _spawn_threads(self) -> None:
        name, run, size = self._current_test_name, type(self)._run, check_world_size(self.world_size)

        def body(rank: int, store: Any) -> None:
            type(self).global_store = store  # type: ignore[attr-defined]  # read by torch's subclasses
            run(name, rank, size, store=store)

        self._threaded_world = ThreadedWorld(body, size)

    @classmethod
    def _run(cls, test_name: str, rank: int, world_size: int, **kwargs: Any) -> None:
        """Run the test in a thread."""
        self = cls(test_name)
        self.rank = rank
        if hasattr(self, "_tls"):  # precision per thread, used by the device tests
            self._tls = threading.local()
            self._tls.precision = TestCase._precision
            self._tls.rel_tol = TestCase._rel_tol
        self.run_test_with_threaded_pg(test_name, rank, world_size, **kwargs)

    def run_test_with_threaded_pg(
        self, test_name: str, rank: int, world_size: int, *, store: Any = None
    ) -> None:
        """Create the group in a thread, run the test, destroy the group. An error of any part is reported."""
        dist.init_process_group("threaded", rank=rank, world_size=world_size, store=store)
        try:
            self.perThreadSetUp()
            getattr(self, test_name)()
        finally:
            dist.destroy_process_group()
            self.perThreadTearDown()

    def join_or_run(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wait for the threads in the main one; run the method in a thread."""

        @functools.wraps(fn)
        def wrapper(self: MultiThreadedTestCase) -> Any:
            if self.rank != self.MAIN_THREAD_RANK:
                return fn()
            if self._threaded_world is None:
                raise RuntimeError(
                    "no thread was started, so nothing was tested: call self._spawn_threads() in setUp"
                )
            return self._threaded_world.join(self.timeout_s)

        return types.MethodType(wrapper, self)

    @property
    def _current_test_name(self) -> str:
        return str(self.id().rpartition(".")[2])

    def assertEqualOnRank(self, x: Any, y: Any, msg: Any = None, *, rank: int = 0) -> None:  # noqa: N802
        """Compare in one thread only, because all threads draw from one random generator."""
        if self.rank == rank:
            self.assertEqual(x, y, msg)

    def assertNotEqualOnRank(self, x: Any, y: Any, msg: Any = None, *, rank: int = 0) -> None:  # noqa: N802
        """Compare in one thread only."""
        if self.rank == rank:
            self.assertNotEqual(x, y, msg)
