"""RPC tests: ``dist_init``, waiting for nodes and references, and the fixtures that select an agent."""

from __future__ import annotations

import functools
import os
import re
import unittest
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import rpc

from disttest.clock import monotonic, sleep
from disttest.testing.helpers import FILE_SCHEMA, find_free_port, tp_transports
from disttest.testing.processes import MultiProcessTestCase

INIT_METHOD_TEMPLATE = FILE_SCHEMA + "{file_name}"
RETRYABLE_MESSAGES = (
    "RREF_FORK_REQUEST",
    "RREF_CHILD_ACCEPT",
    "RREF_USER_DELETE",
    "CLEANUP_AUTOGRAD_CONTEXT_REQ",
)
_DEFAULT_DELAYS = {"PYTHON_CALL": 1.5, "SCRIPT_CALL": 1.5}
_POLL_S = 0.1


def dist_init(
    old_test_method: Callable[..., Any] | None = None,
    setup_rpc: bool = True,
    clean_shutdown: bool = True,
    faulty_messages: Sequence[str] | None = None,
    messages_to_delay: Mapping[str, float] | None = None,
) -> Any:
    """Run the test between ``init_rpc`` and ``shutdown``. Use it bare or with arguments."""
    # The shutdown is not in a ``finally``: a failed test leaves its agent running, and its process ends.
    if old_test_method is None:
        return functools.partial(
            dist_init,
            setup_rpc=setup_rpc,
            clean_shutdown=clean_shutdown,
            faulty_messages=faulty_messages,
            messages_to_delay=messages_to_delay,
        )
    method = old_test_method

    @functools.wraps(method)
    def new_test_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        from torch.distributed.rpc import api

        # A leaked reference then fails the shutdown; torch's own test harness sets it, too (torch 2.9 to 2.15).
        api._ignore_rref_leak = False
        self.worker_id = self.rank
        # Before `rpc_backend_options`, which passes these messages to the agent.
        self.setup_fault_injection(faulty_messages, messages_to_delay)
        options = self.rpc_backend_options
        if setup_rpc:
            rpc.init_rpc(
                name=worker_name(self.rank),
                backend=self.rpc_backend,
                rank=self.rank,
                world_size=self.world_size,
                rpc_backend_options=options,
            )
        result = method(self, *args, **kwargs)
        if setup_rpc:
            rpc.shutdown(graceful=clean_shutdown)
        return result

    return new_test_method


def noop() -> None:
    """Do nothing. Calls of it check whether a node is alive."""


def wait_until_node_failure(rank: int, expected_error_regex: str = ".*") -> str:
    """Call the node until it fails with a text that matches; return the text."""
    # Without a limit: the time limit of the test ends the loop.
    while True:
        try:
            rpc.rpc_sync(worker_name(rank), noop, args=())
        except Exception as error:  # noqa: BLE001  # any failure counts
            if re.search(expected_error_regex, str(error)):
                return str(error)
        sleep(_POLL_S)


def wait_until_pending_futures_and_users_flushed(timeout: float = 20) -> None:
    """Wait until all confirmations of remote references have arrived.

    Raises:
        ValueError: they have not arrived within the time limit.
    """
    deadline = monotonic() + timeout
    while any(pending := _pending()):
        if monotonic() > deadline:
            raise ValueError(
                "Timed out waiting to flush pending futures and users, "
                f"had {pending[0]} pending futures and {pending[1]} pending users"
            )
        sleep(_POLL_S)


def _pending() -> tuple[int, int]:
    info = rpc._rref_context_get_debug_info()  # type: ignore[attr-defined]
    return int(info["num_pending_futures"]), int(info["num_pending_users"])


def get_num_owners_and_forks() -> tuple[str, str]:
    """Return the numbers of owned references and of forks on this node, as torch gives them: texts."""
    info = rpc._rref_context_get_debug_info()  # type: ignore[attr-defined]
    return info["num_owner_rrefs"], info["num_forks"]


def wait_until_owners_and_forks_on_rank(
    num_owners: int, num_forks: int, rank: int, timeout: float = 20
) -> None:
    """Wait until that node has exactly these numbers of references.

    Raises:
        ValueError: it has not reached them within the time limit.
    """
    deadline = monotonic() + timeout
    while True:
        owners, forks = rpc.rpc_sync(worker_name(rank), get_num_owners_and_forks, args=(), timeout=5)
        if (int(owners), int(forks)) == (num_owners, num_forks):
            return
        if monotonic() > deadline:
            raise ValueError(
                f"Timed out waiting {timeout} sec for {num_owners} owners and {num_forks} forks on rank,"
                f" had {owners} owners and {forks} forks"
            )
        sleep(1)


def initialize_pg(init_method: str, rank: int, world_size: int) -> None:
    """Create a default group on gloo if there is none, for RPC tests that need a barrier."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)


def worker_name(rank: int) -> str:
    """Return the name of a rank's agent."""
    return f"worker{rank}"


def get_function_event(function_events: Iterable[Any], partial_event_name: str) -> Any:
    """Return the first profiler event whose name contains the text.

    Raises:
        IndexError: there is none.
    """
    return [event for event in function_events if partial_event_name in event.name][0]  # noqa: RUF015


class RpcAgentTestFixture(ABC):
    """The interface of an agent to a test suite."""

    file_name: str

    @property
    def world_size(self) -> int:
        """Number of agents."""
        return 4

    @property
    def file_init_method(self) -> str:
        """Rendezvous URL of the test's file."""
        return INIT_METHOD_TEMPLATE.format(file_name=self.file_name)

    @property
    def init_method(self) -> str:
        """Rendezvous by file, or by TCP if ``RPC_INIT_WITH_TCP=1``."""
        variables = os.environ  # noqa: TID251  # shared by main process and ranks
        if variables.get("RPC_INIT_WITH_TCP") == "1":
            return f"tcp://{variables['MASTER_ADDR']}:{variables['MASTER_PORT']}"
        return self.file_init_method

    @property
    @abstractmethod
    def rpc_backend(self) -> Any:
        """The agent's entry in torch's registry."""

    @property
    @abstractmethod
    def rpc_backend_options(self) -> Any:
        """New options for the agent, on every access."""

    def setup_fault_injection(
        self, faulty_messages: Sequence[str] | None, messages_to_delay: Mapping[str, float] | None
    ) -> None:
        """Prepare an agent that injects faults; others ignore the arguments."""
        del faulty_messages, messages_to_delay

    @abstractmethod
    def get_shutdown_error_regex(self) -> str:
        """Return a pattern for errors after a remote end has gone."""

    @abstractmethod
    def get_timeout_error_regex(self) -> str:
        """Return a pattern for the error of a call that took too long."""


class TensorPipeRpcAgentTestFixture(RpcAgentTestFixture):
    """The TensorPipe agent."""

    @property
    def rpc_backend(self) -> Any:
        """The agent's entry in torch's registry."""
        return rpc.backend_registry.BackendType["TENSORPIPE"]

    @property
    def rpc_backend_options(self) -> Any:
        """New options for the agent, on every access."""
        return rpc.backend_registry.construct_rpc_backend_options(
            self.rpc_backend, init_method=self.init_method, _transports=tp_transports()
        )

    def get_shutdown_error_regex(self) -> str:
        """Return a pattern for errors after a remote end has gone. TensorPipe has many texts for it."""
        return "(.*)"

    def get_timeout_error_regex(self) -> str:
        """Return a pattern for the error of a call that took too long."""
        return "RPC ran for more than"


class FaultyRpcAgentTestFixture(RpcAgentTestFixture):
    """A TensorPipe agent that fails and delays messages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.messages_to_fail: Sequence[str] = list(RETRYABLE_MESSAGES)
        self.messages_to_delay: Mapping[str, float] = dict(_DEFAULT_DELAYS)

    @property
    def rpc_backend(self) -> Any:
        """The agent's entry in torch's registry."""
        import torch.distributed.rpc._testing  # noqa: F401  # registers the agent

        return rpc.backend_registry.BackendType["FAULTY_TENSORPIPE"]

    @property
    def rpc_backend_options(self) -> Any:
        """New options for the agent, on every access."""
        return rpc.backend_registry.construct_rpc_backend_options(
            self.rpc_backend,
            init_method=self.init_method,
            num_worker_threads=8,
            num_fail_sends=3,
            messages_to_fail=self.messages_to_fail,
            messages_to_delay=self.messages_to_delay,
        )

    def setup_fault_injection(
        self, faulty_messages: Sequence[str] | None, messages_to_delay: Mapping[str, float] | None
    ) -> None:
        """Override the messages that fail and those that are delayed."""
        if faulty_messages is not None:
            self.messages_to_fail = faulty_messages
        if messages_to_delay is not None:
            self.messages_to_delay = messages_to_delay

    def get_shutdown_error_regex(self) -> str:
        """Return a pattern for errors after a remote end has gone."""
        return "(Exception in thread pool task)|(Connection reset by peer)|(Connection closed by peer)"

    def get_timeout_error_regex(self) -> str:
        """Return a pattern for the error of a call that took too long."""
        return "RPC ran for more than"


class SpawnHelper(MultiProcessTestCase):
    """Base class that starts the ranks of an RPC suite. For rendezvous by TCP it chooses the port first."""

    def setUp(self) -> None:
        """Start the ranks."""
        super().setUp()
        self._tcp = os.environ.get("RPC_INIT_WITH_TCP") == "1"  # noqa: TID251
        if self._tcp:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(find_free_port()))  # noqa: TID251
        self._spawn_processes()

    def tearDown(self) -> None:
        """Remove the port from the environment."""
        if self._tcp:
            for name in ("MASTER_ADDR", "MASTER_PORT"):
                os.environ.pop(name, None)  # noqa: TID251
        super().tearDown()


def generate_tests(
    prefix: str, mixin: type, tests: Iterable[type], module_name: str
) -> dict[str, type[unittest.TestCase]]:
    """Create one class for each suite, named prefix + suite: the suite with the agent's fixture."""
    made: dict[str, type[unittest.TestCase]] = {}
    for suite in tests:
        name = f"{prefix}{suite.__name__}"
        made[name] = type(name, (suite, mixin, SpawnHelper), {"__module__": module_name})
    return made
