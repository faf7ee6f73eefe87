"""What lies beside the logs of a test when it is over: what its sanitizers have seen, and recordings for a replay."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from disttest.masking import masker
from disttest.model import ALONE, RecordRule, TestResult, WorldKind
from disttest.replay.format import SUFFIX
from disttest.results.directory import Home
from disttest.runtime.world.attempt import Attempt
from disttest.runtime.world.logs import LogStore
from disttest.sanitizers.choice import Chosen
from disttest.sanitizers.table import SANITIZERS
from disttest.sanitizers.values.values_file import encode_recording


def keep_seen(attempt: Attempt, logs: LogStore, chosen: Sequence[Chosen]) -> None:
    """Write the reports of the ranks that have sent one, of failed tests too; without room on the disk there are none.

    Args:
        attempt: over.
        logs: where its logs lie.
        chosen: the sanitizers that are on.
    """
    if attempt.test.kind is not WorldKind.RANKS:
        return
    world = attempt.test.world or ALONE
    for name, file in ((each.name, SANITIZERS[each.name].kept_as) for each in chosen):
        reports = {
            progress.rank: progress.done.seen[name]
            for progress in attempt.ranks
            if progress.done is not None and name in progress.done.seen
        }
        if file and reports:
            data = encode_recording(attempt.test.nodeid, world.size, world.backend, reports)
            path = logs.place(attempt.ranks[0].log).with_name(file)
            with contextlib.suppress(OSError):
                path.write_bytes(masker.data(data))


def keep_recordings(attempt: Attempt, result: TestResult, rule: RecordRule, home: Home) -> TestResult:
    """Remove the recordings of a test that has passed, unless all are wanted; else the result names whose there are."""
    if rule is RecordRule.OFF:
        return result
    files = {
        progress.rank: (home.now() / progress.log).with_suffix(SUFFIX)
        for progress in attempt.ranks
        if progress.log
    }
    if rule is RecordRule.FAILURES and not (result.outcome.is_bad or result.findings):
        for file in files.values():
            file.unlink(missing_ok=True)
    on_cpus = (
        attempt.test.world or ALONE
    ).device == "cpu"  # of others it only says that they cannot be replayed
    recorded = tuple(rank for rank, file in files.items() if on_cpus and file.is_file())
    return msgspec.structs.replace(result, recorded=recorded)
