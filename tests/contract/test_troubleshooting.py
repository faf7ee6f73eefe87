"""docs/troubleshooting.md quotes what is really said, and leads to sections that exist."""

from __future__ import annotations

import re

import pytest
from action_files import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
OTHERS = {"409 Conflict", "Resource not accessible by integration", "ModuleNotFoundError", "timeout-minutes"}
"""Words of GitHub and of Python."""
SEEN = [row.split(" | ")[0] for row in re.findall(r"^\| (.*)\|$", PAGE.read_text(), re.MULTILINE)]


@pytest.fixture(scope="module")
def said() -> str:
    """All that disttest can say: literals over several lines are joined, and values are ``…`` as on the page."""
    files = [*ROOT.glob("entrypoint/disttest/**/*.py"), *ROOT.glob("actions/*.sh"), ROOT / "docs/errors.md"]
    joined = re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text() for file in files))
    return joined + re.sub(r"\{[^{}\n]*\}", "…", joined)


@pytest.mark.parametrize("symptom", [one for one in SEEN if "`" in one])
def test_a_symptom_is_what_is_said(symptom: str, said: str) -> None:
    for quoted in re.findall(r"`([^`]+)`", symptom):
        assert quoted in OTHERS or quoted.strip("[]") in said, quoted


def test_there_are_symptoms() -> None:
    assert len(SEEN) > 30


def test_what_is_linked_is_there() -> None:
    for page, anchor in re.findall(r"\]\(([\w-]+\.md)(?:#([\w-]+))?\)", PAGE.read_text()):
        headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, f"{page}#{anchor}"
