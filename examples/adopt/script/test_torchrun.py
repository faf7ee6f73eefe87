"""Tests that run torchrun as a command; the last three fail, crash and hang."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("script.py")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("what", ["adds", "fails", "crashes"])
def test_script(what):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, SCRIPT, what], check=True)


@pytest.mark.timeout(3)
def test_hangs():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, SCRIPT, "hangs"], check=True)
