"""Reports, outputs and summary of a launch whose run inside could not write them, or wrote something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from disttest.errors import DisttestError, ExitCode
from disttest.extras.container.supervise import SIGKILL_CODE
from disttest.reports import write_reports
from disttest.reports.outputs import failure_outputs, publish_outputs, publish_summary, run_outputs
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, read_events


class Aftermath:
    """Settles the end of a launch: reports, outputs and summary.

    Args:
        results: the results directory on this host; None if the launch has none here.
        environ: the environment of the command, for GitHub's files.
        say: tells the user.
    """

    def __init__(self, results: Path | None, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._results = results
        self._environ = environ
        self._say = say
        self._published = self._size()
        self._journal = self._stamp()

    def settle(self, code: int) -> None:
        """Publish outputs, unless the run inside has published those of this exit code.

        Args:
            code: the exit code of the launch.
        """
        was_broken_off = code in (SIGKILL_CODE, ExitCode.ENGINE)
        run = self._run()
        if run is not None and was_broken_off:
            self._rebuild(run)
        # The timer of a container ends the run by SIGTERM, of which the run inside makes 143.
        if self._size() > self._published and not was_broken_off and code != ExitCode.DEADLINE:
            return
        if run is None or self._results is None:
            publish_outputs(failure_outputs(code), self._environ)
            return
        publish_outputs(run_outputs(run, self._results, code), self._environ)
        if was_broken_off:
            publish_summary(run, self._results, self._environ)

    def _rebuild(self, run: RunResult) -> None:
        """A run that was killed could not write its reports; its journal is here."""
        assert self._results is not None
        try:
            write_reports(run, self._results)
        except (DisttestError, OSError) as error:
            self._say(f"reports could not be made from the journal: {error}")

    def _run(self) -> RunResult | None:
        """The run inside, as far as its journal has it; None if it wrote none."""
        if self._results is None or self._stamp() in (None, self._journal):
            return None
        try:
            return fold(read_events(self._results / FILE_NAME))
        except (DisttestError, OSError) as error:
            self._say(f"the journal cannot be read: {error}")
            return None

    def _stamp(self) -> tuple[int, int] | None:
        """Tells the journal from that of an earlier run."""
        if self._results is None:
            return None
        try:
            found = (self._results / FILE_NAME).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _size(self) -> int:
        file = self._environ.get("GITHUB_OUTPUT")
        try:
            return Path(file).stat().st_size if file else 0
        except OSError:
            return 0
