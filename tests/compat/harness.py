"""Runs torch's suites under torch's own harness and under ours, and compares the verdicts test by test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from results_files import check_results_below

from disttest.runtime.supervisor.run_supervisor import plugin_arguments

HERE = Path(__file__).parent
CLASSES = HERE / "classes"
RECORDED = HERE / "recorded"
SLOTS = ""
"""How many slots ours may use; empty: those of the machine."""

Verdicts = dict[str, str]
"""Test (class and method) -> passed, failed or skipped."""


class Suite(NamedTuple):
    """A file of torch's classes at one world size."""

    file: str
    ranks: int
    backend: str = "gloo"

    @property
    def name(self) -> str:
        return f"{self.file}-{self.backend}-{self.ranks}"

    @property
    def environment(self) -> dict[str, str]:
        return {"BACKEND": self.backend, "WORLD_SIZE": str(self.ranks)}


class Interpreter(NamedTuple):
    """An interpreter with torch, and the environment of its processes."""

    python: str
    environ: Mapping[str, str]


def this_interpreter() -> Interpreter:
    """The interpreter of the tests themselves."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DISTTEST_", "PYTEST_"))}
    return Interpreter(
        sys.executable, {**clean, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    )


SUITES = (
    Suite("distributed", 2),
    Suite("distributed", 3),
    Suite("distributed", 4),
    Suite("rpc", 4),
    Suite("rpc_faulty", 4),
)
OVER_NCCL = Suite("distributed", 2, "nccl")
"""On two emulated GPUs, in the environment of tests/cuda."""


class Difference(NamedTuple):
    """A test on which the two disagree, with the reason."""

    suite: str
    test: str
    theirs: str
    ours: str
    reason: str


def run_torchs(
    suite: Suite,
    folder: Path,
    *,
    select: str = "",
    spawn: bool = True,
    limit_s: float = 7200,
    interpreter: Interpreter | None = None,
) -> Verdicts:
    """Run under torch's own harness: plain pytest, without the plugin.

    ``spawn``: a new interpreter for each rank, as torch does it; else they come from a fork server (same verdicts,
    minutes in place of hours: see fork_server.py).
    """
    arguments = ["-p", "no:disttest"] + ([] if spawn else ["-p", "tests.compat.fork_server"])
    return _run(suite, folder, arguments, select, limit_s, interpreter or this_interpreter())


def run_ours(
    suite: Suite,
    folder: Path,
    *,
    select: str = "",
    limit_s: float = 3600,
    interpreter: Interpreter | None = None,
    options: Sequence[str] = (),
) -> Verdicts:
    """Run under the plugin; nothing else differs, unless ``options`` say so."""
    arguments = [*options, *plugin_arguments(), "--disttest-host", f"--disttest-results={folder / 'results'}"]
    arguments += [f"--disttest-slots={SLOTS}"] if SLOTS else []
    verdicts = _run(suite, folder, arguments, select, limit_s, interpreter or this_interpreter())
    check_results_below(folder)
    return verdicts


def _run(
    suite: Suite, folder: Path, arguments: list[str], select: str, limit_s: float, interpreter: Interpreter
) -> Verdicts:
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "verdicts.xml"
    paths = os.pathsep.join([str(CLASSES), str(HERE.parents[1]), interpreter.environ["PYTHONPATH"]])
    argv = [
        interpreter.python,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        f"--rootdir={CLASSES}",
        f"--confcutdir={CLASSES}",  # what our own tests need is not there for every interpreter
        "-p",
        "no:cacheprovider",
    ]
    argv += [*arguments, f"--junitxml={report}", str(CLASSES / f"{suite.file}.py")]
    subprocess.run(
        [*argv, *(["-k", select] if select else [])],
        env={**interpreter.environ, **suite.environment, "PYTHONPATH": paths},
        stdout=(folder / "output.txt").open("w"),
        stderr=subprocess.STDOUT,
        timeout=limit_s,
        check=False,
    )
    assert report.exists(), (folder / "output.txt").read_text()[-2000:]
    return read_verdicts(report)


def read_verdicts(report: Path) -> Verdicts:
    """The verdicts of a JUnit file that pytest wrote."""
    return dict(_verdicts(ET.parse(report).getroot()))


def _verdicts(root: ET.Element) -> Iterator[tuple[str, str]]:
    for case in root.iter("testcase"):
        children = {child.tag for child in case}
        verdict = (
            "failed" if children & {"failure", "error"} else "skipped" if "skipped" in children else "passed"
        )
        owner = case.get("classname", "").rpartition(".")[2]
        name = case.get("name", "").partition("[")[0]
        yield f"{owner}.{name}", verdict


def load_recorded(suite: Suite) -> Verdicts:
    """What torch's harness said when it was last run in full (``make compat`` writes it).

    Raises:
        FileNotFoundError: it was not run yet.
    """
    verdicts: Verdicts = json.loads((RECORDED / f"{suite.name}.json").read_text())["verdicts"]
    return verdicts


def record(
    suite: Suite, verdicts: Mapping[str, str], *, spawn: bool, interpreter: Interpreter | None = None
) -> None:
    """Keep what torch's harness said, with the version that said it, and how its ranks were started."""
    python = (interpreter or this_interpreter()).python
    version = [python, "-c", "from torch.version import __version__; print(__version__)"]
    RECORDED.mkdir(exist_ok=True)
    content = {
        "torch": subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip(),
        "ranks": "new interpreters" if spawn else "from a fork server",
        "tests": len(verdicts),
        "verdicts": dict(sorted(verdicts.items())),
    }
    (RECORDED / f"{suite.name}.json").write_text(json.dumps(content, indent=1) + "\n")


def load_differences() -> list[Difference]:
    """The differences that are known, with reasons."""
    entries = tomllib.loads((HERE / "differences.toml").read_text()).get("difference", [])
    return [Difference(**entry) for entry in entries]


def unexplained(suite: Suite, theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """One line for each test on which the verdicts differ and for which no difference is written down."""
    known = {(d.test, d.theirs, d.ours) for d in load_differences() if d.suite == suite.name}
    tests = sorted({*theirs, *ours})
    pairs = ((test, theirs.get(test, "missing"), ours.get(test, "missing")) for test in tests)
    return [
        f"{test}: torch says {their}, disttest says {our}"
        for test, their, our in pairs
        if their != our and (test, their, our) not in known
    ]
