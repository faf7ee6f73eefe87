"""A process that holds memory of a GPU until its input ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from lab import Lab

HOLDS = """
import sys, torch
x = torch.ones(64 << 20, device="cuda:0")
torch.cuda.synchronize()
print("holds it", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_a_stranger(lab: Lab) -> Iterator[subprocess.Popen[str]]:
    """The first GPU of a laboratory is in use while the context is open."""
    with subprocess.Popen(
        [lab.python, "-c", HOLDS],
        env=lab.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "holds it\n"
        yield process
        process.stdin.close()
