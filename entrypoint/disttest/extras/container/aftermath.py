"""Reports, outputs and summary at the end of a launch, whatever ended it.

The run inside the container writes them itself unless it is killed. Its journal is on this host, so in that case the
launcher records the end in the journal and makes everything from it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from disttest.cli.stored_run import find_run
from disttest.errors import DisttestError, ExitCode
from disttest.extras.container.ownership import give_to_owner_above
from disttest.extras.container.supervise import SIGKILL_CODE
from disttest.reports.outputs import failure_outputs, publish_outputs, publish_summary, run_outputs
from disttest.reports.write import write_reports
from disttest.results.directory import no_run_writes
from disttest.results.events import RunFinished
from disttest.results.fold import DIED_EARLY, RunResult, fold
from disttest.results.journal import FILE_NAME, Journal, read_events

_INSIDE_PUBLISHES_NOTHING = (SIGKILL_CODE, ExitCode.ENGINE, ExitCode.DEADLINE)


class Aftermath:
    """Completes a launch: reports, outputs and summary.

    Args:
        results: results directory on this host; None: the newest one of the working directory.
        working_dir: folder in which the run starts.
        environ: environment of the command, with GitHub's files.
        say: prints a line for the user.
    """

    def __init__(
        self, results: Path | None, working_dir: Path, environ: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._results = results
        self._working_dir = working_dir
        self._environ = environ
        self._say = say
        self._published = self._size("GITHUB_OUTPUT")
        self._summarized = self._size("GITHUB_STEP_SUMMARY")
        self._journal = _stamp(self._folder())

    def settle(self, code: int, reason: str = "") -> None:
        """Make journal, reports, outputs and summary agree with the end of the launch.

        Args:
            code: exit code of the launch.
            reason: reason of an early end; empty if the run's own reason counts.
        """
        folder = self._folder()
        run = self._read(folder)
        has_published = self._size("GITHUB_OUTPUT") > self._published
        if run is None:
            if not has_published or code in _INSIDE_PUBLISHES_NOTHING:
                publish_outputs(failure_outputs(code), self._environ)
            return
        if run.reason == DIED_EARLY or (reason and run.exit_code != code):
            run = _rewrite(folder, run, code, reason, self._say)
            self._forget_summary()
            publish_summary(run, folder, self._environ)
        elif has_published:
            return
        publish_outputs(run_outputs(run, folder, code), self._environ)

    def _folder(self) -> Path:
        folder = self._results or self._working_dir / find_run((), self._working_dir)[0]
        return folder.absolute()

    def _read(self, folder: Path) -> RunResult | None:
        """Read the journal of the run inside; None if it wrote none."""
        if _stamp(folder) in (None, self._journal):
            return None
        return _read(folder, self._say)

    def _forget_summary(self) -> None:
        """Remove the summary that the run inside wrote for the workflow's page: it reports another end."""
        if file := self._environ.get("GITHUB_STEP_SUMMARY"):
            with contextlib.suppress(OSError):
                os.truncate(file, self._summarized)

    def _size(self, variable: str) -> int:
        file = self._environ.get(variable)
        try:
            return Path(file).stat().st_size if file else 0
        except OSError:
            return 0


def rebuild_left_run(results: Path | None, working_dir: Path, say: Callable[[str], None]) -> None:
    """Write the reports of a run whose container was removed because its launcher is gone.

    A run that ended normally has its own reports. Another run that writes into the directory now keeps it.
    """
    folder = results or working_dir / find_run((), working_dir)[0]
    with contextlib.suppress(DisttestError, OSError), no_run_writes(folder):
        run = _read(folder, say)
        if run is not None and run.reason == DIED_EARLY:
            reason = "the launcher was killed; the next launch removed its container"
            _rewrite(folder, run, SIGKILL_CODE, reason, say)
            say(f"wrote the reports of that launch into {folder}")


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Return inode and time of the journal in a folder; None if there is none."""
    try:
        found = (folder / FILE_NAME).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _read(folder: Path, say: Callable[[str], None]) -> RunResult | None:
    try:
        return fold(read_events(folder / FILE_NAME))
    except (DisttestError, OSError) as error:
        say(f"cannot read the journal: {error}")
        return None


def _rewrite(folder: Path, run: RunResult, code: int, reason: str, say: Callable[[str], None]) -> RunResult:
    """Record the end in the journal, and write the reports from it."""
    try:
        with contextlib.closing(Journal(folder / FILE_NAME)) as journal:
            journal.end_line()
            journal.append(RunFinished(at_s=run.ended_at_s, exit_code=code, reason=reason))
            run = fold(journal.events())
        for path in write_reports(run, folder):
            give_to_owner_above(path)
    except (DisttestError, OSError) as error:
        say(f"cannot write reports from the journal: {error}")
    return run
