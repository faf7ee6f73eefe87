"""Runs of the command on a cluster, and a folder to start them from: the same for every scheduler."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
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

    def __init__(self, process: subprocess.Popen[str], results: Path) -> None:
        self.process = process
        self.results = results
        self.output = ""

    def wait(self, timeout_s: float = 120) -> ClusterRun:
        self.output, _ = self.process.communicate(timeout=timeout_s)
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
        deadline = time.monotonic() + limit_s
        while not (path.exists() and path.read_text()):
            assert self.process.poll() is None, self.wait().output
            assert time.monotonic() < deadline, f"no {path}"
            time.sleep(0.05)
        return path.read_text()


class RunFolder:
    """A folder with test files, and the runs that were started in it."""

    def __init__(self, folder: Path, environ: Mapping[str, str], before: Sequence[str] = ()) -> None:
        self.folder = folder
        self._environ = environ
        self._before = before
        """What the command line begins with: it leads to where clients of the cluster run."""
        self.started: list[subprocess.Popen[str]] = []

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
        process = subprocess.Popen(
            [*self._before, *command],
            cwd=self.folder,
            env={**clean, "PYTHONPATH": paths, "COLUMNS": "200", **self._environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.started.append(process)
        return ClusterRun(process, self.folder / "results")

    def stop(self) -> None:
        """End what still runs."""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=30)
                process.kill()
