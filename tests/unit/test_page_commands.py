"""Every block of commands in the docs is typed by a test as it stands."""

from __future__ import annotations

import re

import pytest
from documents import ROOT, Block, titles_with_commands
from markdown_it import MarkdownIt

PAGES = [
    *sorted(path.name for path in ROOT.glob("*.md")),
    *sorted(
        str(path.relative_to(ROOT))
        for folder in ("docs", "examples", "actions", "requirements")
        for path in (ROOT / folder).rglob("*.md")
        if "node_modules" not in path.parts
    ),
]
HERE = [(page, title) for page in PAGES for title in titles_with_commands(page)]

TYPED = {
    "tests/integration/test_pages.py::test_a_page_says_what_is_printed": {
        "docs/tutorial.md",
        "docs/good-tests.md",
        "docs/debug-a-hang.md",
        "docs/marks.md",
        "docs/replay.md",
        "docs/triage.md",
    },
    "tests/integration/test_quarantine.py::test_the_page_says_what_is_printed": {"docs/flaky-tests.md"},
    "tests/integration/test_changed.py::test_the_page_says_what_is_printed": {"docs/run-less.md"},
    "tests/integration/test_history.py::test_the_page_says_what_is_printed": {"docs/history.md"},
    "tests/integration/test_chaos.py::test_the_examples_say_what_the_page_shows": {"docs/chaos.md"},
    "tests/integration/test_sanitizers_page.py::test_the_examples_say_what_the_page_shows": {
        "docs/sanitizers.md",
        "docs/sanitizer-order.md",
        "docs/sanitizer-race.md",
        "docs/sanitizer-values.md",
        "docs/observe.md",
    },
    "tests/integration/test_sanitizers_page.py::test_the_how_to_about_a_loss_that_differs": {
        "docs/loss-differs.md"
    },
    "tests/integration/test_planning_page.py::test_a_plan_and_a_merge_are_made_as_the_page_says": {
        "docs/planning.md"
    },
    "tests/plugins/test_own_plugins.py::test_the_page_says_what_is_printed": {"docs/write-a-plugin.md"},
    "tests/core/test_readme.py::test_the_first_screen_works_from_a_clone_and_literally": {
        ("README.md", "Your own tests"),
        ("docs/tutorial.md", "Install"),
    },
    "tests/core/test_readme.py::test_a_suite_runs_from_a_clone_by_one_command": {("README.md", "Try it")},
    "tests/docker/test_cuda_image.py::test_the_command_of_the_page": {("docs/image.md", "Run it by hand")},
    "tests/docker/test_project.py::test_the_command_of_the_page": {("docs/image.md", "Run your tests in it")},
    "tests/cluster/test_runs.py::test_the_commands_of_the_page": {
        ("docs/clusters.md", "Clusters: worlds that span nodes, and pools of GPU hosts"),
        ("docs/clusters.md", "Plans"),
    },
    "tests/kubernetes/test_kubernetes_runs.py::test_the_command_of_the_page": {
        ("docs/kubernetes.md", "Run it")
    },
}
"""Test -> pages, or titles of a page, that it types as they stand."""

NOT_BY_A_TEST = {("CONTRIBUTING.md", "Set-up")}
"""They run the tests."""

_PROGRAMS = (
    "disttest|docker|podman|pip3?|pipx|uvx?|pytest|make|python3?|torchrun|sbatch|srun|salloc|kubectl|git|gh|sudo|apt|"
    "apt-get|npm|npx|curl|wget|ssh|bash|sh|source|export|eval|cd|mkdir"
)
_COMMAND = re.compile(rf"^ *([$>#%] +)?(\w+=\S* )*({_PROGRAMS})( \S+)*( +#.*)?$", re.MULTILINE)
"""A line to be typed; the columns of a table of commands, or a diagram of processes, have more than one space between."""
_OF_A_SHELL = {"bash", "console", "shell", "shell-session", "zsh"}


def is_typed(page: str, title: str) -> bool:
    return any({page, (page, title)} & set(found) for found in TYPED.values())


@pytest.mark.parametrize(("page", "title"), HERE)
def test_a_block_is_run_by_a_test(page: str, title: str) -> None:
    assert is_typed(page, title) or (page, title) in NOT_BY_A_TEST


def test_nothing_stands_here_that_no_page_has() -> None:
    assert set(NOT_BY_A_TEST) <= set(HERE)
    titles = {named for found in TYPED.values() for named in found if isinstance(named, tuple)}
    assert titles <= set(HERE)


@pytest.mark.parametrize("test", TYPED)
def test_the_test_is_there(test: str) -> None:
    file, _, function = test.partition("::")

    assert f"def {function}(" in (ROOT / file).read_text()


def hidden_commands(text: str) -> list[Block]:
    """Blocks of a page with something to be typed that are not marked ``sh``, and so seen by no test that types."""
    code = (t for t in MarkdownIt("commonmark").parse(text) if t.type in ("fence", "code_block"))
    plain = [Block(t.info, t.content) for t in code if t.info not in ("sh", "yaml")]
    return [b for b in plain if b.language in _OF_A_SHELL or _COMMAND.search(b.text)]


@pytest.mark.parametrize("page", PAGES)
def test_commands_stand_in_blocks_of_a_shell(page: str) -> None:
    assert [] == hidden_commands((ROOT / page).read_text())


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ ls\n```",
        "```text\nfirst this:\n$ disttest run tests\n```",
        "```\ndisttest plan tests --matrix FILE\n```",
        "```\nA=1 B=2 make ddp    # in a minute\n```",
        "```bash\n./run\n```",
        "To type:\n\n    pip install torch\n",
        "- first\n\n  ```\n  docker run image\n  ```\n",
    ],
)
def test_a_command_in_another_block_is_seen(text: str) -> None:
    assert len(hidden_commands(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "```sh\ndisttest run tests\n```",
        "```\ndisttest run      runs\n├─ srun     queues\n```",
        "```text\ndisttest: reports and logs in results\n```",
        "Say `disttest run tests`.",
    ],
)
def test_what_is_not_typed_may_stand_anywhere(text: str) -> None:
    assert [] == hidden_commands(text)
