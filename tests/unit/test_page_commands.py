"""Every block of commands in the docs is run by a test: typed as it stands, or in other words where it needs a machine."""

from __future__ import annotations

import re

import pytest
from documents import ROOT, Block, blocks, titles_with_commands
from markdown_it import MarkdownIt

PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
HERE = [(page, title) for page in PAGES for title in titles_with_commands(page)]

TYPED = {
    "tests/integration/test_pages.py::test_a_page_says_what_is_printed": {
        "docs/tutorial.md",
        "docs/debug-a-hang.md",
        "docs/marks.md",
        "docs/replay.md",
    },
    "tests/integration/test_chaos.py::test_the_examples_say_what_the_page_shows": {"docs/chaos.md"},
    "tests/integration/test_sanitizers_page.py::test_the_examples_say_what_the_page_shows": {
        "docs/sanitizers.md"
    },
    "tests/integration/test_sanitizers_page.py::test_the_how_to_about_a_loss_that_differs": {
        "docs/loss-differs.md"
    },
    "tests/integration/test_planning_page.py::test_a_plan_and_a_merge_are_made_as_the_page_says": {
        "docs/planning.md"
    },
    "tests/integration/test_readme.py::test_the_first_screen_works_from_a_clone_and_literally": {
        ("README.md", "Your own tests"),
        ("docs/tutorial.md", "Install"),
    },
}
"""Test -> pages, or titles of a page, that it types as they stand."""

IN_OTHER_WORDS = {
    ("README.md", "Try it"): "tests/contract/test_actions.py::test_every_suite_has_a_rule_in_the_makefile",
    (
        "docs/clusters.md",
        "Clusters: worlds that span nodes, and pools of GPU hosts",
    ): "tests/cluster/test_runs.py::test_the_suites_pass_over_two_nodes_whose_clocks_differ_by_an_hour",
    (
        "docs/clusters.md",
        "Plans",
    ): "tests/cluster/test_runs.py::test_a_plan_asks_slurm_and_its_shards_are_submitted",
    (
        "docs/clusters.md",
        "Kubernetes",
    ): "tests/kubernetes/test_kubernetes_launchers.py::test_collectives_pass_over_two_nodes_in_the_words_of_the_page",
    ("docs/image.md", "The image"): "tests/docker/test_image.py::test_bundled_suites_run_by_name",
}
"""Title of a page -> the test that gives its commands to what they need: a cluster, an engine of containers, make."""

_DISTTEST = re.compile(r"^disttest .*", re.MULTILINE)
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]+")
_COMMAND = re.compile(r"\A(\$ )?(disttest|docker|pip|pytest|make|python3?|sbatch|srun) [^\sA-Z]")

_DIAGRAM = "├─"


def is_typed(page: str, title: str) -> bool:
    return any({page, (page, title)} & set(found) for found in TYPED.values())


@pytest.mark.parametrize(("page", "title"), HERE)
def test_a_block_is_run_by_a_test(page: str, title: str) -> None:
    assert is_typed(page, title) or (page, title) in IN_OTHER_WORDS


def test_nothing_stands_here_that_no_page_has() -> None:
    assert set(IN_OTHER_WORDS) <= set(HERE)


@pytest.mark.parametrize("test", [*TYPED, *IN_OTHER_WORDS.values()])
def test_the_test_is_there(test: str) -> None:
    file, _, function = test.partition("::")

    assert f"def {function}(" in (ROOT / file).read_text()


@pytest.mark.parametrize(("page", "title"), IN_OTHER_WORDS)
def test_other_words_give_the_options_of_the_page(page: str, title: str) -> None:
    typed = [line for b in blocks(page, title) if b.language == "sh" for line in _DISTTEST.findall(b.text)]
    file = ROOT / IN_OTHER_WORDS[page, title].partition("::")[0]
    given = "".join(path.read_text() for path in file.parent.glob("*.py"))

    assert [] == [option for option in _OPTION.findall(" ".join(typed)) if option not in given]


@pytest.mark.parametrize("page", PAGES)
def test_commands_stand_in_blocks_of_a_shell(page: str) -> None:
    fences = (t for t in MarkdownIt("commonmark").parse((ROOT / page).read_text()) if t.type == "fence")
    plain = [Block(t.info, t.content) for t in fences if t.info != "sh"]

    assert [] == [b for b in plain if _COMMAND.search(b.text) and _DIAGRAM not in b.text]
