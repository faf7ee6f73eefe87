"""The tutorial and the pages that show how to do something, typed as they stand there."""

from __future__ import annotations

import pytest
from documents import ROOT, titles_with_commands
from typed import check_page

PAGES = ("tutorial", "debug-a-hang", "marks", "replay")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_is_printed(lab, page):
    titles = titles_with_commands(f"docs/{page}.md")
    assert titles

    for title in titles:
        check_page(f"docs/{page}.md", title, lab)


def test_every_page_with_commands_is_typed_somewhere():
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    elsewhere = {
        "docs/chaos.md",
        "docs/loss-differs.md",
        "docs/sanitizers.md",
    }  # with the tests of their subjects
    on_a_cluster = {"docs/clusters.md"}  # tests/cluster gives the same words to a real Slurm
    typed = {f"docs/{page}.md" for page in PAGES}

    assert {page for page in pages if titles_with_commands(page)} == typed | elsewhere | on_a_cluster
