"""The work of ``disttest explain --packet`` and ``--format github-issue``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttest.cli.stored_run import find_run, read_run, select
from disttest.errors import UsageError
from disttest.extras.explain import limits
from disttest.extras.explain.hooks import ISSUE
from disttest.extras.explain.packet import history_of, packet_of
from disttest.extras.explain.packet_files import write_packet
from disttest.extras.explain.packet_text import issue_body
from disttest.extras.explain.scrub import scrub
from disttest.options.environment import environment
from disttest.outgoing import outgoing
from disttest.reports.text import clean
from disttest.results.fold import RunResult, TestOutcome

_SHOWN = 5


def make_packet(words: Sequence[str], given: Mapping[str, Any]) -> str:
    """Write the packet, print the issue, or both.

    Args:
        words: a results directory, a part of a test's id, or both in this order.
        given: options of the command.

    Returns:
        The text to print.

    Raises:
        UsageError: not exactly one test is meant, or the packet cannot be written.
    """
    results_dir, text = find_run(words)
    run = read_run(results_dir)
    outcome = one_test(run, text)
    packet = packet_of(outcome, run, history_of(outcome.test.nodeid, run, given["history"]))
    outgoing.hide(environment().get("DISTTEST_MASK", "").splitlines())
    printed = []
    if given["format"] == ISSUE:
        printed.append(scrub(clean(issue_body(packet, limits.ISSUE))).rstrip("\n"))
    if given["packet"]:
        output = given["output"] or Path(f"packet-{_short(outcome.test.nodeid)}")
        written = write_packet(packet, outcome, results_dir, output, scrub)
        if not printed:
            printed.append(f"wrote {written}")
    return "\n".join(printed)


def one_test(run: RunResult, text: str) -> TestOutcome:
    """Select the test that is meant: the only one with this in its id, or the only one of them that failed.

    Raises:
        UsageError: there is none, or there are several.
    """
    found = select(run, text)
    exact = [each for each in found if each.test.nodeid == text]
    failed = [each for each in found if each.final.outcome.is_bad]
    for chosen in (exact, found, failed):
        if len(chosen) == 1:
            return chosen[0]
    if not found:
        raise UsageError("no test failed in this run; name a test: disttest explain --packet TEST")
    names = [each.test.nodeid for each in failed or found]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise UsageError(
        f"{len(names)} tests match; give more of the id of one: {', '.join(names[:_SHOWN])}{more}"
    )


def _short(nodeid: str) -> str:
    """Make a name for a file of a node id."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", nodeid.rpartition("::")[2] or nodeid).strip("-")[:80] or "test"
