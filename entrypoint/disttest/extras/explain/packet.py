"""The evidence of one test as data: the content of ``packet.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from disttest.errors import UsageError
from disttest.extras.history.option_rows import NAME as HISTORY
from disttest.extras.history.queries import read_test
from disttest.extras.history.shown import FAILED, describe_past, name_of, sparks, streak_of
from disttest.extras.history.store import reading
from disttest.model import Frozen
from disttest.reports import aggregates
from disttest.reports.location import Repository, locate
from disttest.reports.past_runs import GREEN, RED
from disttest.results.findings import describe_plugins
from disttest.results.fold import RunResult, TestOutcome
from disttest.results.narrative import describe_ranks, how_failed
from disttest.results.repeat import further_commands, repeat_command

VERSION = 1
SHOWN_RUNS = 30


class History(Frozen):
    """The past of the test."""

    runs: int
    failed: int
    rate: str
    """``failed in 3 of 20 runs: 15.0 % (5.2 to 36.0 %)``."""
    sparks: str
    """One block for each of the last runs, the oldest first."""
    streak: str = ""
    """``red since …, last passed at …``; empty if it passed last."""
    last_green_commit: str = ""
    first_failure: str = ""
    """The commit, or the date, of the first failure in the history."""


class LogFile(Frozen):
    """A file of the test."""

    path: str
    """In the packet; empty if it was left out."""
    size: int
    """Bytes in the results directory."""
    rank: int | None = None
    why: str = ""
    """Reason why it was cut or left out."""


class Packet(Frozen):
    """Everything that is known of one test in one run."""

    test: str
    finding: str
    outcome: str
    kind: str
    """``failed``, ``timed out``, ``crashed`` and so on, as JUnit has it."""
    phase: str = ""
    place: str = ""
    """``file:line``."""
    culprit: int | None = None
    victims: tuple[int, ...] = ()
    ranks: tuple[str, ...] = ()
    """One line for each rank, then stacks."""
    evidence: tuple[str, ...] = ()
    """Tracebacks and stacks, the culprit's first."""
    sections: tuple[str, ...] = ()
    """Findings and sections of plugins."""
    notes: tuple[str, ...] = ()
    attempts: tuple[str, ...] = ()
    """Findings of earlier attempts."""
    repeat: str = ""
    further: dict[str, str] = msgspec.field(default_factory=dict)
    """Other commands, such as the one that replays a recording."""
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    run: dict[str, Any] = msgspec.field(default_factory=dict)
    history: History | None = None
    files: tuple[LogFile, ...] = ()
    record: dict[str, Any] = msgspec.field(default_factory=dict)
    """The test with all its attempts, as ``results.json`` has it."""


def packet_of(outcome: TestOutcome, run: RunResult, history: History | None) -> Packet:
    """Gather the evidence of a test, without its files."""
    result = outcome.final
    place = locate(outcome, Repository.of(run)) if result.outcome.is_bad else None
    return Packet(
        test=outcome.test.nodeid,
        finding=aggregates.finding(result),
        outcome="flaky" if outcome.flaky else str(result.outcome),
        kind=how_failed(result) if result.outcome.is_bad else "",
        phase=result.phase,
        place=str(place or ""),
        culprit=result.culprit,
        victims=result.victims,
        ranks=tuple(describe_ranks(result, logs_in="")),
        evidence=tuple(aggregates.evidence(result)),
        sections=tuple(describe_plugins(result)),
        notes=result.notes,
        attempts=tuple(
            f"attempt {each.attempt}: {aggregates.finding(each)}"
            for each in outcome.attempts[:-1]
            if each.outcome.is_bad
        ),
        repeat=repeat_command(outcome.test, run, result.after),
        further=dict(further_commands(outcome.test, result, run)),
        environment={
            "disttest": run.disttest,
            "hardware": msgspec.to_builtins(run.hardware),
            "options": dict(run.invocation.options),
            "pytest_args": list(run.invocation.pytest_args),
            "variables": dict(run.invocation.environment),
        },
        run={
            "run_id": run.run_id,
            "command": list(run.argv),
            "root": run.root,
            "started_at_s": run.started_at_s,
            "exit_code": run.exit_code,
            "reason": run.reason,
            "notes": list(run.notes),
            **{name: value for name, value in run.invocation.data.get(HISTORY, {}).items() if name != "file"},
        },
        history=history,
        record=msgspec.to_builtins(outcome),
    )


def history_of(nodeid: str, run: RunResult, named: Path | None) -> History | None:
    """Read the past of a test; None without a history that has it.

    Raises:
        UsageError: the file that was named cannot be used.
    """
    text = run.invocation.data.get(HISTORY, {}).get("file", "")
    file = named or (Path(text) if text else None)
    if file is None or (named is None and not file.exists()):
        return None
    try:
        with reading(file) as connection:
            past = read_test(connection, nodeid)
    except UsageError:
        if named is not None:
            raise
        return None
    if not past:
        return None
    green = [each for each in past if each.kind in GREEN]
    failed = [each for each in past if each.kind in (*RED, *FAILED)]
    return History(
        runs=len(past),
        failed=len(failed),
        rate=describe_past(past),
        sparks=sparks(each.kind for each in past[-SHOWN_RUNS:]),
        streak=streak_of(past),
        last_green_commit=green[-1].commit if green else "",
        first_failure=name_of(failed[0]) if failed else "",
    )
