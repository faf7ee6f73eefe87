"""A laboratory: runs the real command in a child process and holds what it left."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

from forked_runs import run_in_fork

from disttest.model import TestResult
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, read_events
from disttest.runtime.supervisor.run_supervisor import plugin_arguments

IMPORTS_AT_FORK = """
import os
import sys

HAD_AT_FORK = set()
os.register_at_fork(after_in_child=lambda: HAD_AT_FORK.update(sys.modules))
"""
"""A conftest whose ranks know what they need not have imported by themselves."""

FAULTY_SUITES = Path(__file__).parents[1] / "fixtures" / "faulty_suites"


@dataclasses.dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    exit_code: int
    output: str
    results: Path

    @property
    def run(self) -> RunResult:
        return fold(read_events(self.results / FILE_NAME))

    def result(self, name: str) -> TestResult:
        """The final result of the only test whose node id ends so (or has it as its function)."""
        found = [t for t in self.run.tests if t.test.nodeid.endswith(name) or f"::{name}[" in t.test.nodeid]
        assert len(found) == 1, f"{name}: {[t.test.nodeid for t in self.run.tests]}\n{self.output}"
        return found[0].final

    def log(self, name: str, rank: int) -> str:
        """What a rank has written, but for the line with which gloo of torch 2.9 says that it is connected."""
        text = (self.results / self.result(name).ranks[rank].log).read_text(errors="replace")
        return re.sub(r"^\[Gloo\] Rank \d+ is connected to .*\n", "", text, flags=re.MULTILINE)

    def junit(self) -> ET.Element:
        return ET.parse(self.results / "junit.xml").getroot()


def start_program(argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a program; its errors stand among its output, which is text whatever it writes."""
    return subprocess.Popen(
        argv,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


class Lab:
    """Runs things in a folder of its own and checks that nothing is left of them."""

    def __init__(
        self,
        folder: Path,
        *,
        python: str = sys.executable,
        environ: Mapping[str, str] | None = None,
        forks: bool = False,
    ) -> None:
        """A laboratory in a folder, with this interpreter and its environment unless it is given others.

        Args:
            folder: where it runs things.
            python: the interpreter.
            environ: the environment.
            forks: whether runs to their end may be forks of a process with torch imported.
        """
        self.folder, self.python, self.forks = folder, python, forks
        self._environ = environ

    def write(self, **files: str) -> Lab:
        """Write test modules (``test_x=…`` becomes ``test_x.py``)."""
        for name, source in files.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(source))
        return self

    @property
    def environ(self) -> dict[str, str]:
        if self._environ is not None:
            return dict(self._environ)
        # What Python itself writes at once, if this is set, a user waits for in a log.
        left_out = ("DISTTEST_", "PYTEST_", "GITHUB_", "PYTHONUNBUFFERED")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        return clean | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "COLUMNS": "200"}

    def start(self, *arguments: str, wrapper: Sequence[str] = (), **environ: str) -> subprocess.Popen[str]:
        """Start the command, by itself or as the argument of another one."""
        return start_program(
            [*wrapper, self.python, "-m", "disttest", *arguments], self.folder, self.environ | environ
        )

    def run(
        self, *arguments: str, wrapper: Sequence[str] = (), limit_s: float = 240, **environ: str
    ) -> Ended:
        """Run the command to its end."""
        results = self.folder / "results"
        if self.forks and not wrapper:
            ended = run_in_fork(self.python, arguments, self.folder, self.environ | environ, limit_s)
            if ended is not None:
                return Ended(*ended, results)
        process = self.start(*arguments, wrapper=wrapper, **environ)
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:  # its tree would slow down whatever comes next
            process.terminate()
            process.communicate(timeout=30)
            raise
        return Ended(process.returncode, output, results)

    def start_pytest(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        """Start plain pytest with the plugin."""
        return start_program(
            [self.python, "-m", "pytest", *plugin_arguments(), *arguments],
            self.folder,
            self.environ | environ,
        )

    def pytest(self, *arguments: str, results: str = "results", **environ: str) -> Ended:
        """Run plain pytest with the plugin."""
        ended = subprocess.run(
            [
                self.python,
                "-m",
                "pytest",
                *plugin_arguments(),
                f"--disttest-results={results}",
                *arguments,
            ],
            cwd=self.folder,
            env=self.environ | environ,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=240,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout + ended.stderr, self.folder / results)
