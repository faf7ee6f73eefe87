"""What a resident parent has read of the environment while it imported is what a later run is compared with."""

from __future__ import annotations

import subprocess
import sys

from disttest.extras.resident.fitness import variables_that_matter

IMPORTS = """
import os

asked = set()
look_up = type(os.environ).__getitem__

def look_up_and_note(environ, name):
    asked.add(name)
    return look_up(environ, name)

type(os.environ).__getitem__ = look_up_and_note
# Who goes through all of them looks for names that begin with its own (networkx), not for each of these.
type(os.environ).items = lambda environ: {name: look_up(environ, name) for name in environ}.items()

import importlib
from disttest.extras.resident import parent

parent._import_all()
for name in parent.LAZY_PARTS:
    importlib.import_module(name)
print(*asked)
"""


def test_all_that_is_read_by_imports_counts() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    asked = ended.stdout.split()

    assert "TORCH_LOGS" in asked
    assert [] == sorted({*asked} - {*variables_that_matter(dict.fromkeys(asked, ""))})
