"""The changelog: releases by heading, and fragments that towncrier moves into it as tools/release.py reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = [
    kind["directory"]
    for kind in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
]
FRAGMENTS = sorted(path for path in (ROOT / "changes").iterdir() if path.name != "README.md")


def test_every_heading_is_a_release_with_a_date_but_the_first() -> None:
    headings = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert headings
    for number, heading in enumerate(headings):
        date = r"(\d{4}-\d{2}-\d{2}|unreleased)" if number == 0 else r"\d{4}-\d{2}-\d{2}"
        assert re.fullmatch(rf"\d+\.\d+\.\d+ \({date}\)", heading)


def test_a_fragment_has_a_kind_and_one_paragraph() -> None:
    for fragment in FRAGMENTS:
        assert re.fullmatch(rf"\+[a-z0-9-]+\.({'|'.join(KINDS)})\.md", fragment.name)
        text = fragment.read_text().strip()
        assert text
        assert "\n\n" not in text, fragment.name


def test_a_release_moves_fragments_where_its_notes_are_read(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md", "tools", "actions"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "+leases.fixed.md").write_text("A lease ends with its run.\n")
    (tmp_path / "changes" / "+ranks.added.md").write_text("Ranks have names.\n")

    for command in (
        ["-m", "towncrier", "build", "--yes", "--version", "9.9.9", "--date", "2030-01-02"],
        ["tools/release.py", "notes", "9.9.9"],
    ):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr

    assert done.stdout.split("\n\n") == [
        "### Added",
        "- Ranks have names.",
        "### Fixed",
        "- A lease ends with its run.\n",
    ]
    assert "## 9.9.9 (2030-01-02)\n" in (tmp_path / "CHANGELOG.md").read_text()
    assert (tmp_path / "CHANGELOG.md").read_text().index("9.9.9") < (
        tmp_path / "CHANGELOG.md"
    ).read_text().index("0.1.0")
    assert not list((tmp_path / "changes").iterdir())
