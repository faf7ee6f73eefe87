"""Runs of the command on a cluster, and a folder to start them from: the same for every scheduler."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from results_files import check_results_below

from disttest.model import TestResult
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, read_events

NOT_PASSED = ("DISTTEST_", "PYTEST_", "SLURM_", "KUBE")
"""How variables begin that a run is not to have from the tests' own environment."""


class ClusterRun:
    """A run of the command on a cluster."""

    def __init__(self, process: subprocess.Popen[bytes], results: Path, output: Path) -> None:
        self.process = process
        self.results = results
        self._output = output

    @property
    def output(self) -> str:
        """What it has said until now."""
        return self._output.read_text(errors="replace")

    def wait(self, timeout_s: float = 120) -> ClusterRun:
        self.process.wait(timeout_s)
        check_results_below(self.results)
        return self

    @property
    def exit_code(self) -> int:
        assert self.process.returncode is not None
        return self.process.returncode

    @property
    def run(self) -> RunResult:
        return fold(read_events(self.results / FILE_NAME))

    def result(self, name: str) -> TestResult:
        found = [t for t in self.run.tests if f"::{name}" in t.test.nodeid]
        assert len(found) == 1, f"{name}: {[t.test.nodeid for t in self.run.tests]}\n{self.output}"
        return found[0].final

    def await_file(self, path: Path, limit_s: float = 90) -> str:
        """What a rank writes when it is where a test wants it."""
        self._await(lambda: path.exists() and bool(path.read_text()), str(path), limit_s)
        return path.read_text()

    def await_words(self, words: str, limit_s: float = 90) -> None:
        """Return when it has said them."""
        self._await(lambda: words in self.output, words, limit_s)

    def _await(self, is_there: Callable[[], bool], what: str, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not is_there():
            assert self.process.poll() is None, self.wait().output
            assert time.monotonic() < deadline, f"no {what} in {self.output}"
            time.sleep(0.05)


class RunFolder:
    """A folder with test files, and the runs that were started in it."""

    def __init__(self, folder: Path, environ: Mapping[str, str], before: Sequence[str] = ()) -> None:
        self.folder = folder
        self._environ = environ
        self._before = before
        """What the command line begins with: it leads to where clients of the cluster run."""
        self.started: list[subprocess.Popen[bytes]] = []

    def write(self, **files: str) -> Self:
        for name, source in files.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(source))
        return self

    def start(self, *arguments: str, **environ: str) -> ClusterRun:
        """``disttest ARGUMENTS``."""
        return self._start(sys.executable, "-m", "disttest", *arguments, **environ)

    def types(self, text: str, **environ: str) -> ClusterRun:
        """What a page shows, typed into a shell that stops at the first command that fails."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return self._start("bash", "-euc", text, PATH=path, **environ)

    def _start(self, *command: str, **environ: str) -> ClusterRun:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(NOT_PASSED)}
        paths = os.pathsep.join(p for p in sys.path if p)
        output = self.folder / f"output-{len(self.started)}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*self._before, *command],
                cwd=self.folder,
                env={**clean, "PYTHONPATH": paths, "COLUMNS": "200", **self._environ, **environ},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return ClusterRun(process, self.folder / "results", output)

    def stop(self) -> None:
        """End what still runs."""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                process.kill()
