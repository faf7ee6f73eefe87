"""What a command imports before it knows what it is to do: each of them pays for it, ``disttest --help`` too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = (
    "email",  # by importlib.metadata
    "multiprocessing",
    "numpy",
    "psutil",
    "pytest",
    "rich",
    "subprocess",
    "sysconfig",
    "termios",
    "torch",
    "disttest.deadlock",
    "disttest.observe",
    "disttest.resident",
    "disttest.results.verdict",
    "disttest.runtime",
)
CODE = """
import sys

try:
    from disttest.cli.main import main

    main(sys.argv[1:])
finally:
    sys.stderr.write(" ".join(sys.modules))
"""


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_nothing_heavy_is_imported_until_it_is_needed(word) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ended = subprocess.run(
        [sys.executable, "-c", CODE, word], capture_output=True, text=True, env=env, check=True
    )

    loaded = ended.stderr.split()
    assert "disttest.cli.main" in loaded
    assert [] == [name for name in HEAVY if name in loaded]


def test_who_only_hands_over_to_a_resident_parent_imports_next_to_nothing() -> None:
    code = "import sys, disttest.__main__; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = ended.stdout.split()
    assert "disttest.resident.handover" in loaded
    heavy = (
        "click",
        "ctypes",
        "dataclasses",
        "disttest.cli",
        "disttest.model",
        "msgspec",
        "pathlib",
        "subprocess",
    )
    assert [] == [name for name in heavy if name in loaded]
