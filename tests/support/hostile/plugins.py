"""Plugins of others that distribute, fork or silence: real ones, from the package index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

from _pytest.config import default_plugins, essential_plugins
from lab import Lab
from thorough import variants

from disttest.model import Outcome
from hostile import Trial

NEEDED = {*essential_plugins, "python", "reports"}
"""Plugins of pytest without which there are no tests, or no way to hear of them."""
PINS = ("pytest-xdist==3.8.0", "pytest-forked==1.7.5", "execnet==2.1.2", "py==1.11.0")
TESTS = """
    import pytest
    @pytest.mark.world_size(2)
    def test_world(world):
        assert world.size == 2
    @pytest.mark.world_size(2)
    def test_marked():
        pass
    def test_ordinary():
        pass
"""


_installs = threading.Lock()


def plugins() -> str:
    """A folder that has them, made once: in the environment of the tests they would show in every other test."""
    with _installs:
        return _install()


def _install() -> str:
    name = hashlib.sha256(" ".join(PINS).encode()).hexdigest()[:16]
    folder = Path.home() / ".cache" / "disttest" / f"plugins-{name}"
    if not folder.exists():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(fresh), *PINS]
        subprocess.run(pip, check=True, capture_output=True, timeout=120)
        fresh.rename(folder)
    return str(folder)


def path_with_plugins(lab: Lab) -> str:
    return os.pathsep.join([lab.environ["PYTHONPATH"], plugins()])


def _xdist_under_the_command(lab: Lab) -> None:
    lab.write(test_mixed=TESTS)
    path = path_with_plugins(lab)
    said = "disttest: -n 2 of pytest-xdist is ignored: use slots (--slots)"
    for words, ini in variants(((), "[pytest]\naddopts = -n 2\n"), (("--", "-n", "2"), "")):
        (lab.folder / "pytest.ini").write_text(ini or "[pytest]\n")
        ended = lab.run("test_mixed.py", *words, PYTHONPATH=path)
        assert ended.exit_code == 0, ended.output
        assert [Outcome.PASSED] * 3 == [test.final.outcome for test in ended.run.tests]
        assert ended.output.count(said) == 1, ended.output
        assert said.removeprefix("disttest: ") in ended.run.notes


def _xdist_under_pytest(lab: Lab) -> None:
    lab.write(test_mixed=TESTS)
    ended = lab.pytest("test_mixed.py", "-n", "2", PYTHONPATH=path_with_plugins(lab))
    assert ended.exit_code == 1, ended.output
    assert "1 passed, 2 errors" in ended.output, ended.output
    assert "pytest-xdist cannot run worlds: remove -n" in ended.output


def _forked(lab: Lab) -> None:
    lab.write(test_mixed=TESTS)
    path = path_with_plugins(lab)
    for ended in (
        lab.run("test_mixed.py", "--", "--forked", "-k", "not ordinary", PYTHONPATH=path),
        lab.pytest("test_mixed.py", "--forked", "-k", "not ordinary", PYTHONPATH=path),
    ):
        assert ended.exit_code == 0, ended.output
        assert [Outcome.PASSED] * 2 == [test.final.outcome for test in ended.run.tests], ended.output


def _without_plugins(lab: Lab) -> None:
    lab.write(test_mixed=TESTS)
    off = [word for name in sorted(set(default_plugins) - NEEDED) for word in ("-p", f"no:{name}")]
    for words in variants(off, ["-p", "no:terminal"]):
        for ended in (lab.run("test_mixed.py", "--", *words), lab.pytest("test_mixed.py", *words)):
            assert ended.exit_code == 0, ended.output
            assert "INTERNALERROR" not in ended.output
            assert [Outcome.PASSED] * 3 == [test.final.outcome for test in ended.run.tests]


def _without_reports(lab: Lab) -> None:
    lab.write(test_mixed=TESTS)
    for ended in (
        lab.run("test_mixed.py", "--", "-p", "no:reports"),
        lab.pytest("test_mixed.py", "-p", "no:reports"),
    ):
        assert "tests with ranks need pytest's plugin reports" in ended.output, ended.output
        assert "INTERNALERROR" not in ended.output
        assert ended.exit_code != 0


TRIALS = (
    Trial(
        id="xdist-command",
        claim="-n of pytest-xdist is overruled in one line under the command.",
        run=_xdist_under_the_command,
    ),
    Trial(
        id="xdist-pytest",
        claim="Under plain pytest -n, world tests fail with the true reason; others run.",
        run=_xdist_under_pytest,
    ),
    Trial(
        id="pytest-forked",
        claim="World tests are as ever with --forked: a rank is a process already.",
        run=_forked,
    ),
    Trial(
        id="no-plugins",
        claim="Whatever plugins of pytest can be switched off may be, one by one or together.",
        run=_without_plugins,
    ),
    Trial(id="no-reports", claim="Without pytest's reports nothing with ranks begins.", run=_without_reports),
)
