"""Another user of the machine, without any rights, for tests of what users can do to each other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STRANGER = 54321
"""A user who is nobody else on the machine."""


_READS = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


def as_stranger(*, starts_others: bool = False) -> list[str]:
    """What a command begins with that is to run as the other user; skips the test where that is not possible.

    Args:
        starts_others: the command starts interpreters. Where ours lies in a home of root's, the user gets the right to read
            everything, and still none to write.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv (util-linux) is missing")
    words = [setpriv, f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--no-new-privs"]
    program = "import disttest, subprocess, sys\n"
    if starts_others:
        program += "subprocess.run([sys.executable, '-c', 'import disttest'], check=True)"
    for rights in ((), _READS) if starts_others else ((),):
        done = subprocess.run(
            [*words, *rights, sys.executable, "-c", program], capture_output=True, check=False
        )
        if done.returncode == 0:
            return [*words, *rights]
    pytest.skip(f"another user cannot run {sys.executable}")


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder like ``/tmp``, which everybody can reach and write to; pytest's own are for one user."""
    with tempfile.TemporaryDirectory(prefix="disttest-open-", dir="/tmp") as name:
        Path(name).chmod(0o1777)
        yield Path(name)
