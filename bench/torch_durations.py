"""Measure how long the tests of torch's own distributed suite take on this machine, one after another.

The tests are ``DistributedTest`` of the installed torch (``torch.testing._internal.distributed``), run by
torch's own runner: backend gloo, two ranks, new interpreters for each test. One line a test is written as
soon as it is known, so that an interrupted run is a shorter file and not a lost one::

    python bench/torch_durations.py --every 4 bench/data/torch_gloo_2.csv

Columns: test, outcome (passed, skipped, failed), seconds. The lines that start with # say where it was measured.
"""

from __future__ import annotations

import argparse
import atexit
import csv
import os
import platform
import shutil
import tempfile
import time
import unittest
from pathlib import Path

WORLD_SIZE = 2
# torch's module reads these at import, in this process and in every rank.
os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", str(WORLD_SIZE))
if "TEMP_DIR" not in os.environ:  # the ranks import this file, too, and inherit the folder
    os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="torch-durations-")
    atexit.register(shutil.rmtree, os.environ["TEMP_DIR"], ignore_errors=True)

import torch
from torch.testing._internal.distributed.distributed_test import (
    DistributedTest,
    TestDistBackend,
)


class TorchSuite(TestDistBackend, DistributedTest._DistTestBase):
    """Torch's suite over torch's runner, as test_distributed_spawn.py of the torch repository puts it together."""

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False).__enter__()


def measure(name: str) -> tuple[str, float]:
    """Run one test and return its outcome and how long it took, in seconds."""
    result = unittest.TestResult()
    started = time.monotonic()
    TorchSuite(name).run(result)
    seconds = time.monotonic() - started
    if result.skipped:
        return "skipped", seconds
    return ("passed" if result.wasSuccessful() else "failed"), seconds


def main() -> None:
    """Measure every n-th test and write one line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--every", type=int, default=1, help="measure every n-th test in alphabetical order")
    arguments = parser.parse_args()
    names = unittest.TestLoader().getTestCaseNames(TorchSuite)
    with arguments.file.open("w", newline="") as file:
        file.write(
            f"# torch {torch.__version__}, gloo, {WORLD_SIZE} ranks, {os.cpu_count()} cores, {platform.machine()}\n"
        )
        file.write(f"# {len(names)} tests in the suite, every {arguments.every}. measured\n")
        writer = csv.writer(file, lineterminator="\n")
        for name in names[:: arguments.every]:
            outcome, seconds = measure(name)
            writer.writerow((name, outcome, f"{seconds:.3f}"))
            file.flush()


if __name__ == "__main__":
    main()
