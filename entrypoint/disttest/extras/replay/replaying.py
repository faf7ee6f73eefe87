"""Replay of one rank: run its test in this process, with the data of its peers taken from a recording.

pytest runs the test like any other, so its debugger, terminal and reports work.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from _pytest.terminal import TerminalReporter

from disttest import observe
from disttest.errors import ExitCode
from disttest.extras.replay.format import Head, Recording, read_recording
from disttest.extras.replay.replay_verdict import RecordedOutcome, Replayed, judge
from disttest.host.compute_threads import allow_threads
from disttest.model import Outcome
from disttest.options.environment import add_to_environment
from disttest.runtime.rank import state_snapshot
from disttest.runtime.rank.bridge import message_of, outcome_of
from disttest.runtime.rank.child import use_cuda_freely
from disttest.runtime.rank.rank import make_default_group
from disttest.testing.world import World, provide_world

if TYPE_CHECKING:
    from disttest.extras.replay.player import Player


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
    from disttest.extras.replay.alone import without_peers
    from disttest.extras.replay.player import Diverged, Player

    recording = read_recording(Path(expected.recording))
    head = recording.head
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
    torch.set_num_threads(int(head.environment.get("OMP_NUM_THREADS", "1")))
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
