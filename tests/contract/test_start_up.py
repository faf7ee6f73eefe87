"""What a command imports before it knows what it is to do: each of them pays for it, ``disttest --help`` too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from disttest.runtime.supervisor.run_supervisor import plugin_arguments

HEAVY = (
    "multiprocessing",
    "numpy",
    "psutil",
    "pytest",
    "rich",
    "subprocess",
    "sysconfig",
    "termios",
    "torch",
    "disttest.plugins.deadlock.watch",
    "disttest.observe",
    "disttest.extras.resident.client",
    "disttest.extras.resident.parent",
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


def test_a_command_that_starts_pytest_does_not_import_it() -> None:
    code = "import sys, disttest.cli.run_tests, disttest.runtime.supervisor.listing; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = ended.stdout.split()
    assert "disttest.runtime.controller.orders" in loaded
    assert [] == [name for name in ("pytest", "torch", "numpy") if name in loaded]


def test_a_command_that_an_extra_takes_over_early_imports_next_to_nothing(tmp_path: Path) -> None:
    code = "import sys, disttest.__main__ as command; command._run_early(); print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code, "--resident"], capture_output=True, text=True, check=True, cwd=tmp_path
    )

    loaded = ended.stdout.split()
    assert "disttest.extras.resident.handover" in loaded
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


OF_WORLDS = (
    *(
        "disttest.plugins.deadlock.watch",
        "disttest.observe",
        "disttest.extras.sanitizers.order",
        "disttest.runtime.world",
    ),
    *(
        "disttest.runtime.rank.rank",
        "disttest.plugins.launching_classes.ranks",
        "disttest.runtime.controller.world_pool",
    ),
)
NOTES_WHAT_IS_LOADED = """
import sys
from pathlib import Path

BEFORE = set(sys.modules)


def pytest_unconfigure():
    print("\\nbefore:", *BEFORE, "\\nafter:", *sys.modules)
"""


@pytest.mark.parametrize("asks", [False, True], ids=["plain", "asks"])
def test_what_runs_worlds_is_imported_for_who_asks_before_any_conftest(tmp_path, asks) -> None:
    (tmp_path / "conftest.py").write_text(NOTES_WHAT_IS_LOADED)
    (tmp_path / "test_plain.py").write_text("def test_passes():\n    pass\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        *plugin_arguments(),
        *(["--disttest-slots=1"] if asks else []),
    ]
    ended = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=tmp_path, check=True)

    loaded = {words[0]: words[1:] for line in ended.stdout.splitlines() if (words := line.split())}
    assert "disttest.plugin" in loaded["before:"]
    at = "before:" if asks else "after:"
    assert (list(OF_WORLDS) if asks else []) == [name for name in OF_WORLDS if name in loaded[at]]


def test_names_that_the_page_gives_plugins_without_a_star_load_without_the_options_of_all_plugins() -> None:
    page = (Path(__file__).parents[2] / "docs" / "write-a-plugin.md").read_text()
    names = set(re.findall(r"`(disttest\.[\w.]+)`(?!\\\*)", page[page.index("| to add |") :]))
    code = """
import pkgutil, sys
for name in sys.argv[1:]:
    pkgutil.resolve_name(name)
    if "disttest.options.registry" in sys.modules:
        sys.exit(name)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code, *sorted(names)], capture_output=True, text=True, check=False
    )

    assert len(names) > 10
    assert (ended.returncode, ended.stderr) == (0, "")
