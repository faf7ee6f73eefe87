"""The page of messages: an id, the quoted messages and the advice of each section. The page is its only source."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import disttest

_SECTION = re.compile(r"^### (\S+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\([^)\s]+\)")
_VARIES = re.compile(r"…|\b[A-Z]+(?::[A-Z]+)?\b|'X'")
"""Parts of a quoted message that vary: dots, and words in capitals."""


class MessageSection(NamedTuple):
    """A section of the page."""

    id: str
    text: str

    @property
    def messages(self) -> tuple[str, ...]:
        """The quoted messages, if its first line consists of them."""
        first = self.text.partition("\n")[0]
        return tuple(re.findall(r"`([^`]+)`", first)) if re.fullmatch(r"`[^`]+`(, `[^`]+`)*", first) else ()


@cache
def message_sections() -> tuple[MessageSection, ...]:
    """Read the page, from the installed package or the checkout; empty if it is not there."""
    package = Path(disttest.__file__).parent
    pages = (package / "errors.md", package.parents[1] / "docs" / "errors.md")
    page = next((page.read_text(encoding="utf-8") for page in pages if page.is_file()), "")
    return tuple(MessageSection(name, text.strip()) for name, text in _SECTION.findall(page))


def section_named(name: str) -> MessageSection | None:
    """Return the section with an id."""
    return next((each for each in message_sections() if each.id == name), None)


def in_terminal(text: str) -> str:
    """Return a section without the targets of its links, which lead nowhere outside of the pages."""
    return _LINK.sub(r"\1", text)


def literals(quoted: str) -> list[str]:
    """Return the parts of a quoted message that do not vary."""
    return _VARIES.split(quoted)


def id_of(message: str) -> str:
    """Return the id of a message; empty for an unknown one. Of several quotes that fit, the most literal counts."""
    found = [
        (sum(map(len, literals(quoted))), section.id)
        for section in message_sections()
        for quoted in section.messages
        if _pattern(quoted).match(message)
    ]
    return max(found, default=(0, ""))[1]


@cache
def _pattern(quoted: str) -> re.Pattern[str]:
    text = ".+?".join(map(re.escape, literals(quoted)))
    for one, more in (
        ("rank\\ ", "ranks?\\ "),
        ("waits", "waits?"),
    ):  # the page quotes the message about one rank
        text = text.replace(one, more)
    return re.compile(text, re.DOTALL)


def next_step(message: str) -> str:
    """Return the command that explains a message; empty for an unknown one."""
    known = id_of(message)
    return f"disttest explain {known}" if known else ""
