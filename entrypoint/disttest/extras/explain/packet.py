"""The evidence of one test: as data, the content of ``packet.json``, and as Markdown, a page or the body of an issue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from disttest.errors import UsageError
from disttest.extras.history.hooks import NAME as HISTORY
from disttest.extras.history.queries import read_test
from disttest.extras.history.shown import FAILED, describe_past, name_of, sparks, streak_of
from disttest.extras.history.store import reading
from disttest.model import Frozen
from disttest.reports import aggregates
from disttest.reports.location import Repository, locate
from disttest.reports.markdown import code, escape, exact_code, fenced
from disttest.reports.past_runs import GREEN, RED, SHOWN_COMMIT, when
from disttest.reports.text import one_line, shorten, size
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
    # The run's own history may be on another machine. Only a file that the user names must be there.
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


def packet_markdown(packet: Packet) -> str:
    """Render everything but the files themselves."""
    return "\n".join([f"# {code(packet.test)}", "", *_body(packet, most=200_000), *_files(packet)]) + "\n"


def issue_body(packet: Packet, most: int) -> str:
    """Render the body of an issue.

    Args:
        packet: of the test.
        most: characters; tracebacks and stacks are shortened until the text fits.
    """
    # Facts and commands are short and stay. Tracebacks make a body too long.
    for evidence in (20_000, 8_000, 2_000, 0):
        text = "\n".join(_body(packet, most=evidence)) + "\n"
        if len(text) <= most:
            return text
    return shorten(text, most)


def _body(packet: Packet, *, most: int) -> Iterator[str]:
    yield f"**{escape(one_line(packet.finding, 1000))}**"
    yield ""
    yield from (f"- {line}" for line in _facts(packet))
    yield ""
    yield "### Repeat"
    yield ""
    yield from fenced("\n".join([packet.repeat, *packet.further.values()]))
    if packet.history is not None:
        yield "### History"
        yield ""
        lines = [packet.history.sparks, packet.history.rate, packet.history.streak]
        yield from fenced("\n".join(line for line in lines if line))
    if most:
        yield from _evidence(packet, most)
    yield "### Environment"
    yield ""
    yield from (f"- {line}" for line in _environment(packet.environment, packet.run))
    yield ""


def _facts(packet: Packet) -> Iterator[str]:
    yield f"test: {code(packet.test)}"
    kind = f" ({packet.kind})" if packet.kind not in ("", packet.outcome) else ""
    yield escape(f"outcome: {packet.outcome}{kind} in {packet.phase}")
    if packet.place:
        yield f"place: {code(packet.place)}"
    if packet.culprit is not None:
        victims = f"; victims: {', '.join(map(str, packet.victims))}" if packet.victims else ""
        yield escape(f"culprit: rank {packet.culprit}{victims}")
    yield from (escape(one_line(line, 400)) for line in (*packet.attempts, *packet.notes))


def _evidence(packet: Packet, most: int) -> Iterator[str]:
    parts = {
        "Ranks": "\n".join(packet.ranks),
        "Findings of plugins": "\n".join(packet.sections),
        "Tracebacks and stacks": "\n\n".join(packet.evidence),
    }
    if any(map(str.strip, parts.values())):
        yield "### Evidence"
        yield ""
    for title, text in parts.items():
        if text.strip():
            yield f"<details><summary>{title}</summary>"
            yield ""
            yield from fenced(shorten(text, most).strip("\n"))
            yield "</details>"
            yield ""


def _environment(environment: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    hardware = environment.get("hardware", {})
    names = ("python", "torch", "platform", "driver", "cuda")
    versions = [f"{name} {hardware[name]}" for name in names if hardware.get(name)]
    yield escape(", ".join([f"disttest {environment.get('disttest', '')}", *versions]))
    yield escape(f"{hardware.get('cpus', 0)} CPUs, {', '.join(hardware.get('gpus', ())) or 'no GPU'}")
    if run.get("commit"):
        dirty = " with changed files" if run.get("is_dirty") else ""
        branch = f" of {run['branch']}" if run.get("branch") else ""
        yield escape(f"commit {run['commit'][:SHOWN_COMMIT]}{dirty}{branch}")
    yield escape(f"run {run.get('run_id', '')} of {when(float(run.get('started_at_s', 0)))} (UTC)")
    options = " ".join(f"--{name} {value}" for name, value in environment.get("options", {}).items())
    if options:
        yield f"options: {exact_code(options)}"


def _files(packet: Packet) -> Iterator[str]:
    if packet.files:
        yield "### Files"
        yield ""
        yield from (f"- {_file(each)}" for each in packet.files)


def _file(each: LogFile) -> str:
    if not each.path:
        return escape(each.why)
    return f"{code(each.path)} ({size(each.size)}{f', {each.why}' if each.why else ''})"
