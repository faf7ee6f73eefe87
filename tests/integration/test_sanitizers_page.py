"""The pages of the sanitizers: the commands of their examples print what the pages show."""

from __future__ import annotations

import pytest
from typed import check_page


@pytest.mark.slow("runs each command of a page")
@pytest.mark.parametrize(
    ("page", "title"),
    [
        ("sanitizers", "deadlock"),
        ("sanitizer-order", "Find one"),
        ("sanitizer-race", "Find one"),
        ("sanitizer-values", "Find one"),
        ("observe", "A tool of your own"),
    ],
)
def test_the_examples_say_what_the_page_shows(lab, page, title):
    check_page(f"docs/{page}.md", title, lab)


@pytest.mark.slow("runs each command of a page")
def test_the_how_to_about_a_loss_that_differs(lab):
    for title in ("Record both", "Compare"):
        check_page("docs/loss-differs.md", title, lab)
