"""A laboratory: runs the real command in a child process and holds what it left."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from results_files import check_results_below

from disttest.host.process import adopt_orphans, children_of
from disttest.model import TestResult
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, read_events
from disttest.running.guard import plugin_arguments

ROGUES = Path(__file__).parents[1] / "rogues"


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
        return (self.results / self.result(name).ranks[rank].log).read_text(errors="replace")

    def junit(self) -> ET.Element:
        return ET.parse(self.results / "junit.xml").getroot()


class Lab:
    """Runs things in a folder of its own and checks that nothing is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, **files: str) -> Lab:
        """Write test modules (``test_x=…`` becomes ``test_x.py``)."""
        for name, source in files.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(source))
        return self

    @property
    def environ(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DISTTEST_", "PYTEST_"))}
        return clean | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "COLUMNS": "200"}

    def start(self, *arguments: str, wrapper: Sequence[str] = (), **environ: str) -> subprocess.Popen[str]:
        """Start the command, by itself or as the argument of another one."""
        return subprocess.Popen(
            [*wrapper, sys.executable, "-m", "disttest", *arguments],
            cwd=self.folder,
            env=self.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def run(
        self, *arguments: str, wrapper: Sequence[str] = (), limit_s: float = 240, **environ: str
    ) -> Ended:
        """Run the command to its end."""
        process = self.start(*arguments, wrapper=wrapper, **environ)
        output, _ = process.communicate(timeout=limit_s)
        return Ended(process.returncode, output, self.folder / "results")

    def pytest(self, *arguments: str, results: str = "results", **environ: str) -> Ended:
        """Run plain pytest with the plugin."""
        ended = subprocess.run(
            [
                sys.executable,
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


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.fixture(scope="module")
def nothing_left():
    """Nothing of the module's runs lives on: no process, no shared memory. (Its own children are adopted here.)"""
    adopt_orphans()
    before, shm = children_of(), shared_memory()
    yield
    left = {pid: psutil.Process(pid).cmdline() for pid in children_of() - before}
    adopt_orphans(enabled=False)
    assert left == {}
    assert shared_memory() - shm == set()


@pytest.fixture
def lab(tmp_path: Path, nothing_left) -> Iterator[Lab]:
    yield Lab(tmp_path)
    check_results_below(tmp_path)


@pytest.fixture(scope="module")
def module_lab(tmp_path_factory: pytest.TempPathFactory, nothing_left) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    yield Lab(folder)
    check_results_below(folder)
