"""The page of the package on an index, which shows README.md far from the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def page() -> str:
    """The text of the page, as the build makes it."""
    text = (ROOT / "README.md").read_text()
    for each in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    return text


def test_links_and_pictures_have_whole_addresses() -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page())

    assert [] == [target for target in targets if not target.startswith(("https://", "#"))]
    pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", page())
    assert pictures
    assert all(each.startswith("https://raw.githubusercontent.com/") for each in pictures)


def test_every_address_in_the_repository_leads_to_a_file() -> None:
    inside = re.findall(r"org/dist-tests/(?:blob/)?main/([^)#\s]+)", page())

    assert inside
    assert [] == [path for path in inside if not (ROOT / path).exists()]


def test_the_package_names_its_holder_its_authors_and_its_addresses() -> None:
    assert "Copyright 2026 the disttest authors" in (ROOT / "LICENSE").read_text()
    assert [{"name": "the disttest authors"}] == PROJECT["project"]["authors"]
    assert {"Homepage", "Documentation", "Issues", "Changelog"} <= PROJECT["project"]["urls"].keys()
