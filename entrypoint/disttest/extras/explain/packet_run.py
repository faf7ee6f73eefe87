"""Writes packets: ``disttest explain --packet`` and ``--format github-issue``.

A packet has texts, logs and recordings of one test. It leaves the machine, so secrets in its texts are hidden. A run hides
the values of ``--mask``; this is a second net.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from disttest.cli.stored_run import find_run, read_run, select
from disttest.errors import UsageError
from disttest.extras.explain import limits
from disttest.extras.explain.hooks import ISSUE
from disttest.extras.explain.packet import (
    VERSION,
    LogFile,
    Packet,
    history_of,
    issue_body,
    packet_markdown,
    packet_of,
)
from disttest.options.environment import environment
from disttest.options.registry import secrets_in
from disttest.outgoing import outgoing
from disttest.reports.log_excerpts import Excerpt, LogFolder
from disttest.reports.text import clean, size
from disttest.results.fold import RunResult, TestOutcome
from disttest.safe_open import Tree

Scrub = Callable[[str], str]
_TEXTS = (".log", ".json", ".txt")


def write_packet(packet: Packet, outcome: TestOutcome, results_dir: Path, output: Path, scrub: Scrub) -> Path:
    """Write the packet, all of it or nothing.

    Args:
        packet: without its files.
        outcome: of the test, which names its logs.
        results_dir: directory of the run.
        output: folder, or archive if it ends in ``.zip``; it must not exist.
        scrub: hides secrets in a text.

    Raises:
        UsageError: the place is taken, or cannot be written.
    """
    if output.exists() or output.is_symlink():
        raise UsageError(f"{output} exists; choose another place with --output, or remove it")
    try:
        # In the folder of the output, so that the rename stays in one file system and is atomic.
        with tempfile.TemporaryDirectory(prefix=".packet-", dir=output.absolute().parent) as folder:
            inside = Path(folder) / output.stem
            inside.mkdir()
            files = tuple(_copy_files(outcome, results_dir, inside, scrub))
            packet = msgspec.structs.replace(packet, files=files)
            (inside / "packet.json").write_bytes(encoded(packet, scrub))
            (inside / "packet.md").write_text(scrub(packet_markdown(packet)), "utf-8", errors="replace")
            if output.suffix == ".zip":
                archive = shutil.make_archive(str(Path(folder) / "archive"), "zip", folder, inside.name)
                Path(archive).rename(output)
            else:
                inside.rename(output)
    except OSError as error:
        raise UsageError(
            f"packet {output} cannot be written: {error.strerror}; choose another place with --output"
        ) from error
    return output


def encoded(packet: Packet, scrub: Scrub) -> bytes:
    """Encode the packet as JSON. Each text in it is cleaned and scrubbed."""
    fields = {"version": VERSION, **msgspec.to_builtins(packet)}  # defaults are left out, never the version
    return msgspec.json.format(msgspec.json.encode(_scrubbed(fields, scrub)), indent=1) + b"\n"


def _scrubbed(value: object, scrub: Scrub) -> object:
    if isinstance(value, str):
        return scrub(clean(value))
    if isinstance(value, dict):
        return {clean(str(name)): _of_name(str(name), item, scrub) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(item, scrub) for item in value]
    return value


def _of_name(name: str, item: object, scrub: Scrub) -> object:
    """Scrub a value whose name may say that it is secret."""
    # In JSON a name and its value are two texts. The patterns need both in one.
    if isinstance(item, str) and item and (whole := scrub(f"{name}={item}")) != f"{name}={item}":
        return whole.removeprefix(f"{name}=")
    return _scrubbed(item, scrub)


def _copy_files(outcome: TestOutcome, results_dir: Path, inside: Path, scrub: Scrub) -> Iterator[LogFile]:
    """Copy what lies in the log folders of all attempts of the test."""
    logs, room = LogFolder(results_dir), limits.TOTAL
    ranks = {
        record.log: record.rank for attempt in outcome.attempts for record in attempt.ranks if record.log
    }
    folders = {record.rpartition("/")[0] for record in ranks}
    folders |= {outcome.test.log_folder(attempt.attempt) for attempt in outcome.attempts}
    for name in _files_below(results_dir, sorted(folders)):
        copied = _copy(name, results_dir, inside / name, logs, room, scrub)
        room -= copied.size if copied.path else 0
        yield msgspec.structs.replace(copied, path=name if copied.path else "", rank=ranks.get(name))


def _files_below(results_dir: Path, folders: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for folder in folders:
        for path, below, files in os.walk(results_dir / folder):
            below.sort()
            names = (str(Path(path, name).relative_to(results_dir)) for name in sorted(files))
            yield from (name for name in names if name not in seen and not seen.add(name))  # type: ignore[func-returns-value]


def _copy(name: str, results_dir: Path, target: Path, logs: LogFolder, room: int, scrub: Scrub) -> LogFile:
    """Copy a regular file: a text cut and scrubbed, anything else as it is unless it is too large."""
    try:
        # Tests can write into their log folders, so a link there must not lead out of them.
        fd = Tree(results_dir).open(name)
    except OSError as error:
        return LogFile(path="", size=0, why=f"{name}: not copied, {error.strerror}")
    with os.fdopen(fd, "rb") as source:
        length = os.fstat(fd).st_size
        if target.suffix in _TEXTS:
            excerpt = _scrubbed_excerpt(logs, name, scrub)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(str(excerpt or ""), "utf-8", errors="replace")
            why = f"{size(excerpt.cut_bytes)} in the middle are cut" if excerpt and excerpt.cut_bytes else ""
            return LogFile(path=name, size=length, why=why)
        if length > min(limits.FILE, room):
            return LogFile(path="", size=length, why=f"{name}: left out, it has {size(length)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        return LogFile(path=name, size=length)


def _scrubbed_excerpt(logs: LogFolder, name: str, scrub: Scrub) -> Excerpt | None:
    """Read the two ends of a log, and hide secrets in them before they are cut: half a secret has no pattern."""
    more = limits.LONGEST_SECRET
    excerpt = logs.excerpt(name, head_bytes=limits.LOG_HEAD + more, tail_bytes=limits.LOG_TAIL + more)
    if excerpt is None:
        return None
    head, tail = scrub(excerpt.head), scrub(excerpt.tail)
    if not excerpt.cut_bytes:
        return Excerpt(head=head)
    # Cut by the same number of characters after secrets were hidden, which makes a text shorter.
    return Excerpt(head=head[:-more], tail=tail[more:], cut_bytes=excerpt.cut_bytes + 2 * more)


HIDDEN = "***"
_KNOWN = (
    r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bglpat-[A-Za-z0-9_-]{20,}",
    r"\bhf_[A-Za-z0-9]{20,}",
    r"\bsk-[A-Za-z0-9_-]{20,}",
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    # A key whose first lines the run has cut. The lookbehind keeps the search linear in many such lines.
    r"(?<![A-Za-z0-9+/=]\n)(?m:^)(?:[A-Za-z0-9+/=]++\r?\n)++-----END [A-Z ]*PRIVATE KEY-----",
)
"""Tokens of GitHub, GitLab, Hugging Face, OpenAI, Slack and AWS; JSON web tokens; private keys."""
_TOKEN = re.compile("|".join(_KNOWN), re.DOTALL)
_URL = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_BEARER = re.compile(r"(?i)(?<=\bauthorization: )(bearer|basic|token) \S+")
# Tests of models are full of numbers of tokens: only the token of something, or a variable in capitals, is a secret.
_NAMES = (
    r"(?i:passw(?:or)?d|secret|api[_-]?key|access[_-]?key|private[_-]?key|credential"
    r"|(?:auth|access|api|refresh|session|bearer)[_-]?token)|TOKEN(?![A-Z])"
)
# A node id (``test_secret.py::test_x``) and a line of a file (``test_secret.py:1234:``) are no values.
_NAMED = re.compile(
    rf"((?:{_NAMES})[\w.-]{{0,100}}[\"']?\s*[=:](?!:)\s*[\"']?)(?!\d+(?:\W|$))([^\s\"',;&]{{4,}})"
)
"""A value behind a name that says that it is secret: ``API_KEY=…``, ``"password": "…"``."""


def scrub(text: str) -> str:
    """Hide the values that the run hides, and all that looks like a secret."""
    # The values that are known go first. Patterns then see the rest.
    text = _TOKEN.sub(HIDDEN, outgoing.text(text))
    text = _NAMED.sub(rf"\1{HIDDEN}", _BEARER.sub(rf"\1 {HIDDEN}", text))
    return _URL.sub(HIDDEN, text)


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
    # Logs of a run without --mask still contain them.
    outgoing.hide(secrets_in(environment()))
    packet = packet_of(outcome, run, history_of(outcome.test.nodeid, run, given["history"]))
    # Before the page and the issue shorten any text.
    packet = msgspec.convert(_scrubbed(msgspec.to_builtins(packet), scrub), Packet)
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
    # An id in full wins over the ids that contain it. Of several matches the only failure is meant.
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
