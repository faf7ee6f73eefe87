"""Replay of one rank: run its test in this process, with the data of its peers taken from a recording.

pytest runs the test like any other, so its debugger, terminal and reports work. torch.distributed has no peers there:
groups have any size, and stores have no server. The backend of a group is gloo, on a device that connects to a peer at its
first message. Everything that a test can ask of the backend is therefore as in the recorded run, while calls never reach
it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch.distributed as dist
from _pytest.terminal import TerminalReporter
from torch._C._distributed_c10d import Backend as _Backend
from torch.distributed import distributed_c10d as c10d

from disttest import observe
from disttest.errors import ExitCode
from disttest.extras.replay.format import Head, Recording, read_recording
from disttest.extras.replay.replay_verdict import RecordedOutcome, Replayed, judge
from disttest.host.compute_threads import allow_threads, asked_threads_of
from disttest.model import Outcome
from disttest.options.environment import add_to_environment
from disttest.runtime.rank import state_snapshot
from disttest.runtime.rank.bridge import message_of, outcome_of
from disttest.runtime.rank.child import use_cuda_freely
from disttest.runtime.rank.rank import make_default_group
from disttest.testing.world import World, provide_world

if TYPE_CHECKING:
    from disttest.extras.replay.player import Player

_dist: Any = dist
_STORES = ("TCPStore", "FileStore")
_ISSUING = (
    *("allgather", "allreduce", "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast"),
    *("gather", "monitored_barrier", "recv", "recv_anysource", "reduce", "reduce_scatter", "scatter", "send"),
    *("_allgather_base", "_reduce_scatter_base", "allgather_coalesced"),
    *(
        "all_gather_single",
        "all_to_all_single",
        "gather_into_tensor",
        "gather_single",
        "reduce_scatter_single",
    ),
)


class _Store(_dist.HashStore):  # type: ignore[misc]
    """Replaces stores of any kind; its answers come from the recording."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__()
        # TCPStore takes host and port by place or by name, and programs read both again.
        given = [*arguments, named.get("host_name", ""), named.get("port", 0)]
        self.host, self.port = given[0], given[1]


class _Gloo(type):
    """Type of the gloo backend whose instances connect to no peer until they are called."""

    # A class, not a function: programs ask isinstance(backend, ProcessGroupGloo) and read
    # ProcessGroupGloo.create_device.
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _real)

    def __getattr__(cls, name: str) -> Any:
        return getattr(_real, name)

    def __call__(
        cls, _store: Any, rank: int, size: int, timeout: timedelta | None = None, **_named: Any
    ) -> Any:
        # Groups of torch 2.15 and later ask the backend for rank and size. torch's ``fake`` backend was tried: it has
        # another name, and no sequence numbers.
        # Options of gloo are private (torch 2.9 to 2.15): https://github.com/pytorch/pytorch/pull/56531
        options = _real._Options()  # noqa: SLF001
        options._devices = [_real.create_device(hostname="127.0.0.1", lazy_init=True)]  # noqa: SLF001
        if timeout is not None:
            options._timeout = timeout  # noqa: SLF001
        return _real(_dist.HashStore(), rank, size, options)


_real: Any = getattr(c10d, "ProcessGroupGloo", None)


class ProcessGroupGloo(metaclass=_Gloo):
    """Replaces gloo's backend."""


def _refuse(name: str) -> Any:
    def method(self: object, *_arguments: object, **_named: object) -> None:
        del self
        raise RuntimeError(
            f"Backend.{name} was called without its process group; such calls are not recorded and cannot be replayed"
        )

    return method


@contextlib.contextmanager
def without_peers() -> Iterator[None]:
    """Within the context, groups and stores are made without peers."""
    with contextlib.ExitStack() as patches:
        # Modules hold the originals under their own names (`from … import TCPStore`).
        for name in list(sys.modules):
            if name.startswith("torch.distributed") or name == "torch._C._distributed_c10d":
                _put(patches, sys.modules[name])
        for name in filter(vars(_Backend).__contains__, _ISSUING):
            patches.enter_context(mock.patch.object(_Backend, name, _refuse(name)))
        yield


def _put(patches: contextlib.ExitStack, module: Any) -> None:
    """Patch the replacements into a module that has imported the originals."""
    for name in (*_STORES, "ProcessGroupGloo"):
        # Not getattr, which a module may answer by importing something.
        found = vars(module).get(name)
        if found is not None and isinstance(found, type):
            new = ProcessGroupGloo if name == "ProcessGroupGloo" else _Store
            patches.enter_context(mock.patch.object(module, name, new))


def replay_session(session: pytest.Session, expected: RecordedOutcome) -> None:
    """Run the test of a recording as an ordinary process does.

    Args:
        session: session that has collected the test.
        expected: the recording and its outcome.
    """
    # This process forks nothing from here on, so threads and CUDA are allowed.
    allow_threads()
    use_cuda_freely()
    replay_rank(session, expected)


def replay_rank(session: pytest.Session, expected: RecordedOutcome) -> None:
    """Run the test of a recording.

    Args:
        session: session that has collected the test.
        expected: the recording and its outcome.
    """
    from disttest.extras.replay.player import Diverged, Player

    recording = read_recording(Path(expected.recording))
    head = recording.head
    # The world's size is part of the id, and is selected by the options of the command.
    item = next((each for each in session.items if each.nodeid == head.nodeid), None)
    if item is None:
        pytest.exit(
            f"disttest: {head.nodeid} was not collected here; run the replay where the test was recorded",
            ExitCode.USAGE,
        )
    player = Player(recording)
    report = _Report(expected, recording, player)
    session.config.pluginmanager.register(report, "disttest-replay")
    with TemporaryDirectory(prefix="disttest-replay-") as scratch:
        _become(head, Path(scratch))
        with without_peers(), observe.observing(player):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    try:
        player.close()
    except Diverged:
        return  # reported by the player


def _become(head: Head, scratch: Path) -> None:
    """Restore the environment of the recorded rank as it was when its test began."""
    import torch

    add_to_environment(head.environment)
    torch.set_num_threads(asked_threads_of("OMP_NUM_THREADS") or 1)
    provide_world(lambda: _world(head, scratch), lambda: scratch)
    state_snapshot.reseed(head.seed)


def _world(head: Head, scratch: Path) -> World:
    import torch.distributed as dist

    variables = head.environment
    if not dist.is_initialized():
        store = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
        make_default_group(head.shape, head.rank, store, generation=head.generation)
    return World(
        rank=head.rank,
        size=head.shape.size,
        local_rank=int(variables["LOCAL_RANK"]),
        backend=head.shape.backend,
        device_type=head.shape.device,
        scratch=lambda: scratch,
    )


class _Report:
    """A pytest plugin that reports the outcome of the replay."""

    def __init__(self, expected: RecordedOutcome, recording: Recording, player: Player) -> None:
        self._expected = expected
        self._recording = recording
        self._player = player
        self._reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the report of a phase."""
        self._reports.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Exit with 0 if the replay matches the recording, whether or not the test passed."""
        session.exitstatus = judge(self._expected, self._seen()).exit_code

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Print the verdict."""
        head, verdict = self._recording.head, judge(self._expected, self._seen())
        terminalreporter.section(f"replay of rank {head.rank} of {head.shape.size}", sep="=", bold=True)
        terminalreporter.write_line(verdict.words, green=verdict.is_same, red=not verdict.is_same)
        for gap in observe.gaps():
            terminalreporter.write_line(f"not observed: {gap}")

    def _seen(self) -> Replayed:
        from disttest.extras.replay.player import Diverged

        stopped = self._player.stopped
        bad = (each for each in self._reports if outcome_of(each).is_bad)
        encoded = (each for each in self._reports if outcome_of(each) is not Outcome.PASSED)
        # As for a rank: the first phase that failed, and otherwise the first that did not pass.
        decides = next(bad, None) or next(encoded, None)
        diverged = isinstance(stopped, Diverged)
        return Replayed(
            outcome=outcome_of(decides) if decides else Outcome.PASSED,
            message=message_of(decides) if decides else "",
            calls=self._player.calls,
            ended=str(stopped) if stopped and not diverged else "",
            diverged=str(stopped) if diverged else "",
            other_values=self._player.other_values,
        )
