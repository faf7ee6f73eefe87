"""Fixtures of the device tests: a fake driver, and the machine that it shows."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest
from fake_driver import FakeDriver
from lab import start_program
from results_files import check_results_below

from disttest.plugins.gpus import probe
from disttest.plugins.gpus.detect import detect_machine
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, read_events

WORKERS = Path(__file__).parents[1] / "support" / "workers"


@pytest.fixture
def fake(tmp_path):
    """Make a fake driver from facts."""

    def make(facts, name="driver"):
        return FakeDriver(tmp_path / name, facts)

    return make


@pytest.fixture(params=["a fork asks", "a new interpreter asks"])
def detect(request, tmp_path, monkeypatch):
    """Detect the machine that a fake driver shows, with an otherwise empty file system."""
    monkeypatch.setattr(probe, "forks_are_like_new", lambda: request.param == "a fork asks")

    def run(driver, *, root=None, stall_s=5.0):
        return detect_machine(library=str(driver.library), root=root or tmp_path / "empty", stall_s=stall_s)

    return run


class Ended:
    """A run of the command that has ended."""

    def __init__(self, exit_code, output, results):
        self.exit_code, self.output, self.results = exit_code, output, results
        check_results_below(results)

    @property
    def events(self):
        return list(read_events(self.results / FILE_NAME))

    @property
    def run(self):
        return fold(self.events)

    def results_of(self, prefix=""):
        """Name (without the world) -> final result."""
        return {
            test.test.name.replace("[1xgloo-", "[").replace("[1xgloo]", ""): test.final
            for test in self.run.tests
            if test.test.nodeid.startswith(prefix)
        }


class Host:
    """A machine with fake GPUs on which the real command runs real ranks; only their compute is the CPU's."""

    def __init__(self, folder, driver):
        self.folder, self.driver = folder, driver
        folder.mkdir()

    def write(self, **files):
        for name, source in files.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(source))

    @property
    def environ(self):
        probe = {"library": str(self.driver.library), "compute": "cpu", "worker": "faulty_worker"}
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DISTTEST_", "PYTEST_", "CUDA_"))}
        path = os.pathsep.join(part for part in (*sys.path, str(WORKERS)) if part)
        ours = {
            "DISTTEST_PROBE": json.dumps(probe),
            "DISTTEST_FAULTS": "",
            "PYTHONPATH": path,
            "COLUMNS": "200",
        }
        return clean | ours

    def start(self, *arguments, results="results", backend="gloo", **environ):
        options = ["--results", str(self.folder / results)]
        if "no:disttest.gpus" not in arguments:
            options += ["--lease-dir", str(self.folder / "leases")]
        options += ["--backend", backend] if backend else []  # the torch of these tests has no NCCL
        return start_program(
            [sys.executable, "-m", "disttest", "run", *arguments, *options],
            self.folder,
            self.environ | environ,
        )

    def end(self, process, results="results"):
        output, _ = process.communicate(timeout=240)
        return Ended(process.returncode, output, self.folder / results)

    def run(self, *arguments, **environ):
        return self.end(self.start(*arguments, **environ))


@pytest.fixture
def host(tmp_path, fake):
    def make(facts):
        return Host(tmp_path / "host", fake(facts))

    return make
