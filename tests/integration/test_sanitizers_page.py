"""docs/sanitizers.md and its how-to pages: their examples, typed as they stand there, say what the page shows."""

from __future__ import annotations

import pytest
from typed import check_page


@pytest.mark.parametrize("title", ["deadlock", "order", "race", "values", "A tool of your own"])
def test_the_examples_say_what_the_page_shows(lab, title):
    check_page("docs/sanitizers.md", title, lab)


def test_the_how_to_about_a_loss_that_differs(lab):
    for title in ("Record both", "Compare"):
        check_page("docs/loss-differs.md", title, lab)
