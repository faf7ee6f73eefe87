"""What pyproject.toml asks for at least is enough: all that we run on but torch is as old as it may be.

Older torch, which is another download of gigabytes, is a row of ``make matrix``.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from environments import kept_environment
from lab import Lab

ROOT = Path(__file__).parents[2]
ASKED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
RECORDED = """
import pytest, torch
from torch.nn.parallel import DistributedDataParallel

@pytest.mark.world_size(2)
def test_trains(world):
    DistributedDataParallel(torch.nn.Linear(8, 16))(torch.ones(2, 8)).sum().backward()
"""
VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""
SPEAK_TO_THEM = ("cli", "launch", "options", "reports", "results", "runtime/messages")
"""Folders of unit tests: where the libraries are used."""


@pytest.fixture(scope="module")
def python() -> Path:
    return kept_environment("\n".join(ASKED), "--resolution", "lowest-direct")


def test_they_are_the_oldest(python):
    asked = {re.split("[><=]", line)[0]: line.partition(">=")[2] for line in ASKED}

    told = subprocess.run([python, "-c", VERSIONS, *asked], capture_output=True, text=True, check=True)

    for name, found in json.loads(told.stdout).items():
        # A release that was never made or has been withdrawn is followed by the next one.
        assert found.split(".")[:2] == [*asked[name].split("."), "0"][:2], (name, found)


@pytest.fixture
def lab(python, tmp_path) -> Lab:
    environ = Lab(tmp_path).environ | {"PYTHONPATH": str(ROOT / "entrypoint")}
    return Lab(tmp_path, python=str(python), environ=environ)


def test_a_run_and_its_reports(lab):
    ended = lab.run("smoke")

    assert ended.exit_code == 0, ended.output
    assert {"junit.xml", "report.html", "summary.md"} <= {path.name for path in ended.results.iterdir()}


def test_a_recording_is_replayed(lab):
    lab.write(test_recorded=RECORDED).run("record", "test_recorded.py")

    replayed = lab.run("replay", "test_trains", "--rank", "1")

    assert "as recorded: the rank passed" in replayed.output


def test_what_speaks_to_them(lab, tmp_path):
    folders = [f"tests/unit/{name}" for name in SPEAK_TO_THEM]

    ended = subprocess.run(
        [lab.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", f"--basetemp={tmp_path}/base", *folders],
        cwd=ROOT, env=lab.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stdout
