"""Run of ``disttest replay``: find the recording, and start pytest with that one test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from disttest.cli.stored_run import find_run, select
from disttest.errors import UsageError
from disttest.extras.replay.format import SUFFIX, Recording, read_recording
from disttest.extras.replay.hooks import NAME
from disttest.extras.replay.replay_verdict import RecordedOutcome
from disttest.model import RankEnd, RankRecord
from disttest.options.environment import environment
from disttest.planning.targets import resolve_targets
from disttest.results.fold import RunResult, TestOutcome, fold
from disttest.results.journal import FILE_NAME, read_events
from disttest.results.repeat import keep_pytest_args, target_of
from disttest.runtime.controller.orders import PluginOrder, given_order
from disttest.runtime.supervisor.run_supervisor import plugin_arguments, suite_arguments


def run_replay(words: Sequence[str], rank: int, pytest_args: Sequence[str]) -> int:
    """Run a recorded rank again. Return the exit code of its process as a shell does.

    Args:
        words: a results directory, a part of a test's id, or both in this order.
        rank: rank of the recorded world.
        pytest_args: further arguments for pytest.

    Raises:
        UsageError: there is no such recording, or it cannot be replayed.
    """
    results_dir, text = find_run(words)
    run = fold(read_events(results_dir / FILE_NAME))
    outcome = _the_test(run, text)
    path, record = _newest(outcome, results_dir, rank)
    recording = read_recording(path)
    _check(recording, path, outcome.test.nodeid, record)
    expected = RecordedOutcome(recording=str(path), outcome=record.outcome, message=record.message)
    # A replay is pytest in this terminal: a world would supervise a process that the user wants to stop and inspect.
    command = _command(outcome, run, recording, pytest_args)
    # The hash seed has an effect only when an interpreter starts. Other variables are restored in the
    # process.
    variables = {**environment(), "PYTHONHASHSEED": recording.head.environment.get("PYTHONHASHSEED", "")}
    with given_order(PluginOrder(plugin=NAME, work=expected)) as (argument, descriptors):
        ended = subprocess.run(
            [*command, argument],
            env=variables,
            # Results of another machine name a folder of that machine.
            cwd=cwd if (cwd := run.invocation.cwd) and Path(cwd).is_dir() else None,
            check=False,
            pass_fds=descriptors,
        )
    # As a shell does: 128 and the number of the signal.
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode


def _the_test(run: RunResult, text: str) -> TestOutcome:
    """Find the test that the text selects.

    Raises:
        UsageError: the text selects none or several.
    """
    found = select(run, text) if text else run.tests
    exact = [each for each in found if each.test.nodeid == text]
    if len(exact or found) == 1:
        return (exact or found)[0]
    names = ", ".join(each.test.nodeid for each in found[:4])
    raise UsageError(f"{text!r} matches {len(found)} tests ({names}, …); give the id of one of them")


def _newest(outcome: TestOutcome, results_dir: Path, rank: int) -> tuple[Path, RankRecord]:
    """Return the recording of the last attempt that has one.

    Raises:
        UsageError: no attempt has a recording of the rank.
    """
    # With --record failures an attempt that passed has no file, so the failed one before it is found.
    for result in reversed(outcome.attempts):
        for record in result.ranks:
            path = (results_dir / record.log).with_suffix(SUFFIX)
            if record.rank == rank and record.log and path.is_file():
                return path.absolute(), record
    world = outcome.test.world
    if world is not None and rank >= world.size:
        raise UsageError(
            f"{outcome.test.nodeid} ran with {world.size} ranks; give --rank 0 to {world.size - 1}"
        )
    raise UsageError(
        f"{results_dir} has no recording of rank {rank} of {outcome.test.nodeid}; record it with disttest record "
        "(tests of worlds on one machine; with --record failures, only those that fail)"
    )


def _check(recording: Recording, path: Path, nodeid: str, record: RankRecord) -> None:
    """Refuse a recording that would be replayed wrongly.

    Raises:
        UsageError: it belongs to another test, is incomplete, or cannot be replayed.
    """
    head = recording.head
    if (head.nodeid, head.rank) != (nodeid, record.rank):
        raise UsageError(
            f"{path} is the recording of rank {head.rank} of {head.nodeid}; copy the right file from the run"
        )
    if recording.unfit:
        raise UsageError(
            f"rank {head.rank} of {head.nodeid} cannot be replayed: {'; '.join(recording.unfit)}"
        )
    # A rank that was killed has no last record, and its file is complete up to that moment.
    if record.end is RankEnd.REPORTED and not recording.is_whole:
        raise UsageError(f"the recording {path} is incomplete; copy it from the run again")


def _command(
    outcome: TestOutcome, run: RunResult, recording: Recording, pytest_args: Sequence[str]
) -> list[str]:
    shape = recording.head.shape
    targets = resolve_targets([target_of(outcome.test, run)]) if run.invocation.bundled else None
    target = targets.arguments if targets else (target_of(outcome.test, run),)
    return [
        *(sys.executable, "-m", "pytest", *plugin_arguments()),
        *(suite_arguments() if targets else ()),
        *(f"--disttest-world-sizes={shape.size}", f"--disttest-backend={shape.backend}"),
        f"--disttest-device={shape.device}",
        # -s, since the debugger needs the terminal. Without the cache, since a replay must not change which
        # tests failed last.
        *("-s", "-q", "--no-header", "-p", "no:cacheprovider"),
        *keep_pytest_args(run.invocation.pytest_args),
        *pytest_args,
        *target,
    ]
