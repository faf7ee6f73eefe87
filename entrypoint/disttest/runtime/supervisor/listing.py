"""Collect tests without running them, for ``disttest list`` and ``disttest plan``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from disttest.host.process import Child, Exit, end_all, spawn_child
from disttest.limits import PYTEST_TERM_S, TICK_S
from disttest.model import Frozen, TestCase, TestResult, WorldKind
from disttest.planning.targets import Targets
from disttest.reports.text import count
from disttest.results.events import CollectionFailed, Noted, RunStarted, TestCollected, TestFinished
from disttest.results.journal import FILE_NAME, read_events
from disttest.runtime.controller.orders import ListerOrder, Shared, given_order
from disttest.runtime.supervisor.run_supervisor import pytest_command


class Collection(Frozen):
    """Result of a collection."""

    tests: tuple[TestCase, ...]
    exit_code: int
    output: str
    """Output of pytest, to show if a file could not be collected."""
    root: str = ""
    """Directory to which node ids and files are relative."""
    errors: tuple[tuple[str, str], ...] = ()
    """Files that could not be collected, with the reasons."""
    skipped: tuple[tuple[TestCase, TestResult], ...] = ()
    """Files that skipped themselves, which no command line can select."""
    notes: tuple[tuple[str, str], ...] = ()
    """Node id and message for tests that a plan lacks, or that no longer exist."""
    remarks: tuple[str, ...] = ()
    """General remarks, for example that no GPU of this machine works."""
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    """Plugin name -> its data about the selection of tests."""


def _wait(child: Child) -> None:
    while child.wait(TICK_S) is None:
        pass


def collect_tests(
    targets: Targets,
    flags: dict[str, str],
    extra: Sequence[str],
    folder: Path,
    *,
    shared: Shared | None = None,
    wait: Callable[[Child], None] = _wait,
) -> Collection:
    """Collect in a child process.

    Args:
        targets: the targets to collect.
        flags: flags of the child.
        extra: further arguments for pytest.
        folder: folder of the child's journal, as set by ``flags``.
        shared: the machine to collect for, and data for plugins.
        wait: waits for the child; a child that is alive afterwards is ended.
    """
    argv = [*pytest_command(targets, flags, extra), "--collect-only", "-q"]
    ended, output = _run(argv, shared or Shared(), wait)
    journal = folder / FILE_NAME
    events = tuple(read_events(journal)) if journal.exists() else ()
    found = {event.test.nodeid: event.test for event in events if isinstance(event, TestCollected)}
    results = (event.result for event in events if isinstance(event, TestFinished))
    skipped = tuple((found.pop(result.nodeid), result) for result in results)
    return Collection(
        tests=tuple(found.values()),
        skipped=skipped,
        exit_code=ended.returncode,
        output=output,
        root=next((event.root for event in events if isinstance(event, RunStarted)), ""),
        errors=tuple((e.nodeid, e.message) for e in events if isinstance(e, CollectionFailed)),
        notes=tuple((e.nodeid, e.message) for e in events if isinstance(e, Noted) and e.nodeid),
        data=next((event.invocation.data for event in events if isinstance(event, RunStarted)), {}),
        remarks=tuple(e.message for e in events if isinstance(e, Noted) and not e.nodeid),
    )


def _run(argv: Sequence[str], shared: Shared, wait: Callable[[Child], None]) -> tuple[Exit, str]:
    """Run a child; return its exit status and its output, errors last."""
    # Files instead of pipes: no reader is needed while the caller waits.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with _lister(shared) as (argument, descriptors):
            child = spawn_child(
                [*argv, argument],
                pass_fds=descriptors,
                stdout=output.fileno(),
                stderr=errors.fileno(),
                keep_stdin=True,
            )
        try:
            wait(child)
        finally:
            # The caller's wait may end early or raise, at Ctrl-C for example. No child may outlive it.
            end_all([child], term_grace_s=PYTEST_TERM_S)
        ended = child.poll() or Exit(signal=signal.SIGKILL)
        child.close()
        for file in (output, errors):
            file.seek(0)
        return ended, (output.read() + errors.read()).decode(errors="replace")


def _lister(shared: Shared) -> contextlib.AbstractContextManager[tuple[str, tuple[int, ...]]]:
    """Write the order of a child."""
    return given_order(ListerOrder(shared=msgspec.structs.replace(shared, supervisor=os.getpid())))


def ask_pytest(targets: Targets, flags: dict[str, str], extra: Sequence[str], shared: Shared) -> int:
    """Run pytest for information that only it has (``--fixtures``, ``--help``); return its exit code."""
    # pytest prints directly to the terminal.
    with _lister(shared) as (argument, descriptors):
        argv = [*pytest_command(targets, flags, extra), argument]
        ended = subprocess.run(argv, check=False, pass_fds=descriptors)
    # A shell reports a signal as 128 plus its number, and `subprocess` as the negative number.
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode


def render_list(tests: Sequence[TestCase], *, each: bool) -> str:
    """Format a table of suites (tests, world sizes, backends), or a list of all tests."""
    if each:
        return "\n".join(map(_describe, tests))
    by_suite: dict[str, list[TestCase]] = {}
    for test in tests:
        by_suite.setdefault(test.suite, []).append(test)
    rows = [("suite", "tests", "world sizes", "backends"), *(_row(*entry) for entry in by_suite.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _describe(test: TestCase) -> str:
    """Format a test: its node id and, if its class starts the ranks, their number and whether they are new."""
    if test.world is None or test.kind not in (WorldKind.MAIN, WorldKind.THREADS):
        return test.nodeid
    ranks = count(test.world.size, "rank" if test.kind is WorldKind.MAIN else "thread")
    return f"{test.nodeid}  ({', '.join(filter(None, (ranks, test.reuse_text)))})"


def _row(suite: str, tests: Sequence[TestCase]) -> tuple[str, str, str, str]:
    shapes = [test.world for test in tests if test.world is not None]
    sizes = ",".join(str(size) for size in sorted({shape.size for shape in shapes})) or "-"
    backends = ",".join(sorted({shape.backend for shape in shapes})) or "-"
    return suite, str(len(tests)), sizes, backends
