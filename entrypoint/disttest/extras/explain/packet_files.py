"""Writes a packet: texts, logs and recordings of one test, as a folder or an archive."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from disttest.errors import UsageError
from disttest.extras.explain import limits
from disttest.extras.explain.packet import VERSION, LogFile, Packet
from disttest.extras.explain.packet_text import packet_markdown
from disttest.reports.log_excerpts import LogFolder
from disttest.reports.text import clean, size
from disttest.results.fold import TestOutcome
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
        fd = Tree(results_dir).open(name)
    except OSError as error:
        return LogFile(path="", size=0, why=f"{name}: not copied, {error.strerror}")
    with os.fdopen(fd, "rb") as source:
        length = os.fstat(fd).st_size
        if target.suffix in _TEXTS:
            excerpt = logs.excerpt(name, head_bytes=limits.LOG_HEAD, tail_bytes=limits.LOG_TAIL)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(scrub(str(excerpt or "")), "utf-8", errors="replace")
            why = f"{size(excerpt.cut_bytes)} in the middle are cut" if excerpt and excerpt.cut_bytes else ""
            return LogFile(path=name, size=length, why=why)
        if length > min(limits.FILE, room):
            return LogFile(path="", size=length, why=f"{name}: left out, it has {size(length)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        return LogFile(path=name, size=length)
