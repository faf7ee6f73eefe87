"""docs/sanitizers.md: its examples, typed as they stand there, say what the page shows."""

from __future__ import annotations

import pytest
from typed import check_page


@pytest.mark.parametrize("title", ["deadlock", "order", "race", "A tool of your own"])
def test_the_examples_say_what_the_page_shows(lab, title):
    check_page("docs/sanitizers.md", title, lab)
