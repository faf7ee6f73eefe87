"""What workflows use is pinned by commit, is one version everywhere, and is looked at at least once a year."""

from __future__ import annotations

import datetime
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from action_files import ROOT

OWN = "org/dist-tests"
RECORD = Path(__file__).parent / "pins.toml"
YEAR = datetime.timedelta(days=365)


def used_everywhere() -> Iterator[tuple[Path, str, str, str]]:
    """File, action, reference and comment of each use; in docs and templates, too."""
    listed = subprocess.run(
        ["git", "ls-files", "*.yml", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.split():
        text = (ROOT / name).read_text()
        for match in re.finditer(r"^\s*(?:- )?uses: *([^@\s]+)@(\S+)(?: *# *(.*))?$", text, re.MULTILINE):
            if not match[1].startswith(("./", OWN)):
                yield ROOT / name, match[1], match[2], match[3] or ""


def old_pins(record: Mapping[str, datetime.date], today: datetime.date) -> list[str]:
    """What nobody has looked at for a year."""
    return [f"{action}, since {day}" for action, day in sorted(record.items()) if today - day > YEAR]


def test_what_is_used_is_pinned_by_commit_with_its_version() -> None:
    for path, action, reference, comment in used_everywhere():
        assert re.fullmatch(r"[0-9a-f]{40}", reference), f"{path}: {action}"
        # Dependabot moves a comment that is the version and nothing else.
        assert re.match(r"v\d+(\.\d+\.\d+)?($| )", comment), f"{path}: {action}: no version behind it"


def test_one_version_of_each_used_action() -> None:
    commits: dict[str, set[str]] = {}
    for _path, action, reference, comment in used_everywhere():
        commits.setdefault(action, set()).add(f"{reference} {comment.split()[0]}")
    assert {action: found for action, found in commits.items() if len(found) > 1} == {}


def test_each_pin_has_its_day_and_none_is_older_than_a_year() -> None:
    record = tomllib.loads(RECORD.read_text())
    used = {action for _path, action, _reference, _comment in used_everywhere()}
    assert set(record) == used, f"{RECORD.name} names other actions than the workflows"
    old = old_pins(record, datetime.datetime.now(tz=datetime.UTC).date())
    assert old == [], f"move these to their newest version, or write today's date into {RECORD.name}"


@pytest.mark.parametrize(("days", "named"), [(365, []), (366, ["a/b, since 2026-01-01"])])
def test_a_pin_is_old_after_a_year(days: int, named: list[str]) -> None:
    day = datetime.date(2026, 1, 1)
    assert old_pins({"a/b": day}, day + datetime.timedelta(days=days)) == named


def test_dependabot_looks_where_actions_are_used() -> None:
    folders = (ROOT / ".github" / "dependabot.yml").read_text()
    for path, *_rest in used_everywhere():
        top = path.relative_to(ROOT).parts[0]
        # Its docs and the template follow: a test holds all of them at one version.
        assert top in (".github", "action.yml", "docs", "entrypoint") or f"'/{top}/*'" in folders, path
