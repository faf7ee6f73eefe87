"""``disttest adopt`` proposes settings for a suite from its text, and runs nothing of it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from disttest.cli.main import command

EXAMPLES = Path(__file__).parents[3] / "examples" / "adopt"


def adopt(path: Path) -> str:
    ended = CliRunner().invoke(command, ["adopt", str(path)], obj=[], prog_name="disttest")
    assert ended.exit_code == 0, ended.output
    return ended.output


def proposed(text: str) -> tuple[dict, str]:
    """The settings and the command of a proposal."""
    before, _, last = text.rstrip("\n").rpartition("\n")
    return tomllib.loads(before[before.index("[tool.disttest]") :])["tool"]["disttest"], last


@pytest.mark.parametrize(
    ("suite", "isolates", "spmd"),
    [
        ("spawn", True, False),
        ("script", True, False),
        ("launcher", True, False),
        ("torchrun", False, True),
        ("workers", False, True),
        ("classes", False, False),
    ],
)
def test_the_suites_of_the_examples_get_the_settings_of_the_page(suite, isolates, spmd):
    settings, run = proposed(adopt(EXAMPLES / suite))

    assert isolates == settings.get("isolate-files", False)
    assert spmd == ("--spmd 2" in run)
    assert ("foreign-marks" in settings) == (suite == "launcher")


def test_nothing_of_a_suite_is_imported_or_changed(tmp_path):
    (tmp_path / "test_bad.py").write_text("raise SystemExit('imported')\nmp.spawn(work, nprocs=2)\n")
    before = sorted(tmp_path.iterdir())
    text = adopt(tmp_path)

    assert f"{tmp_path / 'test_bad.py'}:2: starts processes" in text
    assert before == sorted(tmp_path.iterdir())


def test_a_suite_without_ranks_needs_no_setting(tmp_path):
    (tmp_path / "test_plain.py").write_text("def test_one():\n    pass\n")

    settings, run = proposed(adopt(tmp_path))
    assert ({"timeout": 120}, f"disttest run {tmp_path}") == (settings, run)
