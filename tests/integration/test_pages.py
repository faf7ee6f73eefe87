"""The tutorial and the pages that show how to do something, typed as they stand there."""

from __future__ import annotations

import pytest
from documents import titles_with_commands
from typed import check_page

INSTALLED = "Install"
"""What only a newcomer types (test_readme.py)."""
PAGES = ("tutorial", "good-tests", "debug-a-hang", "marks", "replay", "triage")


@pytest.mark.slow("runs each command of a page")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_is_printed(lab, page):
    titles = [title for title in titles_with_commands(f"docs/{page}.md") if title != INSTALLED]
    assert titles

    for title in titles:
        check_page(f"docs/{page}.md", title, lab)
