"""tools/retry: what failed runs once more, and what passes then is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RETRY = Path(__file__).resolve().parents[2] / "tools" / "retry"
FLAKY = """
import pathlib
import pytest

@pytest.fixture(scope="module")
def was_here():
    seen = pathlib.Path(__file__).with_suffix(".seen")
    yield seen.exists()
    seen.touch()
"""
TEST = """
def test_{number}(was_here):
    assert was_here
"""


def retried(folder: Path, *files: str, ledger: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the tests of these files, and then tools/retry with how that ended."""
    for number, text in enumerate(files):
        (folder / f"test_{number}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    arguments, environ = (".",), {"PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    once = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder, env=environ, stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return subprocess.run(
        [RETRY, ledger or folder / "ledger", str(once.returncode), sys.executable, *arguments],
        cwd=folder, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_what_passes_then_is_named_however_many_share_a_run(tmp_path: Path) -> None:
    done = retried(tmp_path, FLAKY + "".join(TEST.format(number=number) for number in range(5)))

    assert 0 == done.returncode, done.stdout
    assert [f"FLAKY (failed once, passed by itself): test_0.py::test_{number}" for number in range(5)] == [
        line for line in done.stdout.splitlines() if line.startswith("FLAKY")
    ]


def test_warnings_that_name_a_test_are_no_tests(tmp_path: Path) -> None:
    warns = "import warnings\nwarnings.warn('in\\n  Test: other.py::test_2')\n"
    done = retried(tmp_path, warns + FLAKY + TEST.format(number=0))

    assert 0 == done.returncode, done.stdout
    assert "test_0.py::test_0\n" == (tmp_path / "ledger").read_text()


def test_what_fails_again_is_red(tmp_path: Path) -> None:
    done = retried(tmp_path, FLAKY + TEST.format(number=0), "def test_always(): assert False")

    assert 1 == done.returncode
    assert "FAILED test_1.py::test_always" in done.stdout
    assert "FLAKY" not in done.stdout


def test_tests_of_more_than_two_files_are_not_repeated(tmp_path: Path) -> None:
    done = retried(tmp_path, *[FLAKY + TEST.format(number=0)] * 3)

    assert 1 == done.returncode
    assert (
        "Not repeated: tests of 3 files have failed in this CI run, and at most 2 are repeated.\n"
        == done.stdout
    )


def test_kinds_of_tests_share_the_number_of_files(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text("tests/unit/test_a.py::test_1\ntests/unit/test_a.py::test_2\n")

    first = retried(tmp_path, FLAKY + TEST.format(number=0), ledger=ledger)
    (tmp_path / "test_0.seen").unlink()
    other = tmp_path / "other"
    other.mkdir()
    second = retried(other, "def test_passes(): pass", FLAKY + TEST.format(number=0), ledger=ledger)

    assert (0, 1) == (first.returncode, second.returncode)
    assert 3 == len(ledger.read_text().splitlines())
    assert "tests of 3 files have failed" in second.stdout


@pytest.mark.parametrize("code", [2, 4, 5])
def test_a_run_that_broke_is_not_repeated(tmp_path: Path, code: int) -> None:
    done = subprocess.run(
        [RETRY, tmp_path / "ledger", str(code), "/bin/false"], cwd=tmp_path, capture_output=True, check=False
    )

    assert (code, b"") == (done.returncode, done.stdout)
