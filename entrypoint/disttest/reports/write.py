"""Write all reports of a run; a failing one does not affect the others.

Each reporter and its libraries are imported on use, so that the command starts fast.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO

from disttest.errors import DisttestError, PluginError, ReportError, UsageError
from disttest.plugin_manager import plugin_manager
from disttest.reports.past_runs import PastRun
from disttest.reports.reporter import Reporter
from disttest.reports.results_json import FILE_NAME as RESULTS_JSON
from disttest.reports.results_json import results_json_pieces
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME as JOURNAL
from disttest.results.journal import read_events
from disttest.safe_open import create_file


def _json(run: RunResult, results_dir: Path, history: Sequence[PastRun], file: BinaryIO) -> None:  # noqa: ARG001
    file.writelines(results_json_pieces(run))


def _junit(run: RunResult, results_dir: Path, history: Sequence[PastRun], file: BinaryIO) -> None:  # noqa: ARG001
    from disttest.reports.junit import write_junit

    write_junit(run, results_dir, file)


@cache
def reporters() -> Mapping[str, Reporter]:
    """Map formats to reporters; the one that tools need most comes first, those of plugins last."""
    core = {
        "json": Reporter(RESULTS_JSON, _json),
        "junit": Reporter("junit.xml", _junit),
    }
    for name, reporter in plugin_manager().mapping("disttest_addreporters", Reporter).items():
        taken = {each.file_name for each in core.values()}
        if (
            name in (*core, "all")
            or reporter.file_name in (*taken, *_OTHERS)
            or _is_elsewhere(reporter.file_name)
        ):
            raise PluginError(
                f"the report {name!r} of a plugin cannot be {reporter.file_name!r}: its format and file must be new, "
                "and the file must be in the results directory"
            )
        core[name] = reporter
    return core


# Other files in a results directory.
_OTHERS = (JOURNAL, "logs", "plan.json")


def _is_elsewhere(file_name: str) -> bool:
    return file_name in ("", ".", "..") or "/" in file_name


def load_reporters() -> None:
    """Import the modules that writing needs, while there is time: none at the end of the run."""
    import disttest.reports.junit
    import disttest.reports.terminal  # noqa: F401

    for reporter in reporters().values():
        reporter.load()


def write_reports(
    run: RunResult,
    results_dir: Path,
    formats: tuple[str, ...] | None = None,
    *,
    history: Sequence[PastRun] | None = None,
) -> tuple[Path, ...]:
    """Write the reports of a run into its results directory, and return their paths.

    Args:
        run: result of the run.
        results_dir: directory of the logs and the reports.
        formats: formats by their names in :func:`reporters`; None for all.
        history: earlier runs for the trend in the page; None for those that plugins know.

    Raises:
        ReportError: at least one report could not be written; the others were.
        UsageError: a format does not exist.
    """
    known = reporters()
    formats = tuple(known) if formats is None else formats
    unknown = sorted(set(formats) - set(known))
    if unknown:
        raise UsageError(f"no report format {unknown[0]!r}; there are {', '.join(known)}")
    written: list[Path] = []
    failed: list[str] = []
    if history is None:
        history, failed = _past_runs(run)
    for name in formats:
        reporter = known[name]
        try:
            written.append(
                write_whole(
                    results_dir / reporter.file_name, partial(reporter.write, run, results_dir, history)
                )
            )
        # A reporter of a plugin may raise anything; the other reports are written all the same.
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever is wrong with one report, the others are owed
            failed.append(f"{reporter.file_name}: {type(error).__name__}: {error}")
    if failed:
        raise ReportError(failed, written=tuple(written))
    return tuple(written)


def _past_runs(run: RunResult) -> tuple[Sequence[PastRun], list[str]]:
    """Return earlier runs, and the errors of plugins that cannot read them."""
    try:
        found = plugin_manager().items("disttest_past_runs", PastRun, run=run)
    except DisttestError as error:
        return (), [f"earlier runs: {error}"]
    return [past for _, past in found], []


def rebuild(
    results_dir: Path, formats: tuple[str, ...] | None = None, *, history: Sequence[PastRun] | None = None
) -> tuple[Path, ...]:
    """Write reports again from the journal in ``results_dir``, with the arguments of :func:`write_reports`.

    Raises:
        UsageError: the journal or a format does not exist.
        ReportError: as in :func:`write_reports`.
    """
    run = fold(read_events(results_dir / JOURNAL))
    return write_reports(run, results_dir, formats, history=history)


def write_whole(path: Path, content: str | Callable[[BinaryIO], None]) -> Path:
    """Write next to ``path`` and rename the file into place, so that no reader sees half a report.

    Args:
        path: the report.
        content: its text, or a function that writes it in pieces, so that a large one is never in memory as a whole.
    """
    # A random name, created without following links: another user of the directory can neither guess nor redirect it.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with os.fdopen(create_file(temporary), "wb") as file:
            if callable(content):
                content(file)
            else:
                # A lone surrogate must not cost a whole report.
                file.write(content.encode("utf-8", errors="replace"))
            file.flush()
            # A rename can reach the disk before the content does.
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
