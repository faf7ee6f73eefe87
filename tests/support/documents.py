"""The code blocks of the documentation, for the tests that run them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
_FILE_NAME = re.compile(r"^# (\w+\.py)\n")


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str


def blocks(page: str, title: str) -> list[Block]:
    """The code blocks below a title of a page, down to the next title.

    Args:
        page: its path in the repository.
        title: as it stands there.
    """
    tokens = MarkdownIt("commonmark").parse((ROOT / page).read_text())
    start = [token.content for token in tokens].index(title)
    end = next(
        (i for i, token in enumerate(tokens[start:], start) if token.type == "heading_open"), len(tokens)
    )
    return [Block(token.info, token.content) for token in tokens[start:end] if token.type == "fence"]


def write_files(found: Iterable[Block], folder: Path) -> None:
    """Write the blocks of Python whose first line names their file."""
    for block in found:
        name = _FILE_NAME.search(block.text) if block.language == "python" else None
        if name:
            (folder / name[1]).write_text(block.text)


def commands(found: Iterable[Block]) -> Iterator[tuple[str, list[str]]]:
    """The blocks of a shell, each with the lines of output that the page shows below it."""
    typed = ""
    for block in found:
        if block.language == "sh":
            if typed:
                yield typed, []
            typed = block.text
        elif block.language == "text" and typed:
            yield typed, block.text.splitlines()
            typed = ""
    if typed:
        yield typed, []


def titles_with_commands(page: str) -> list[str]:
    """The titles of a page below which, before the next one, something is to be typed."""
    tokens = MarkdownIt("commonmark").parse((ROOT / page).read_text())
    titles, title = [], ""
    for before, token in itertools.pairwise(tokens):
        if before.type == "heading_open":
            title = token.content
        elif token.type == "fence" and token.info == "sh" and title not in titles:
            titles.append(title)
    return titles
