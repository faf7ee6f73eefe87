"""Messages: an id, the quoted messages, their meaning and the next step of each section.

``messages.md`` of the core and of each plugin is their only source; docs/errors.md has all of them on one page.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from functools import cache
from pathlib import Path
from typing import NamedTuple

import disttest

_SECTION = re.compile(r"^### (\S+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\([^)\s]+\)")
_CODE = re.compile(r"`[^`]+`")
_KEPT_SPACE = "\0"
_WIDEST = 100
_LONGEST = 1000
"""Characters of a message that are compared: a test may fail with a text of any length."""
_REFUSED = re.compile(r"refused: (?:node [^\s:]+: )?")
"""Words before the message of a refusal that is the error of all tests of a job."""
_VARIES = re.compile(r"…|\b[A-Z]+(?::[A-Z]+)?\b|'X'")
"""Parts of a quoted message that vary: dots, and words in capitals."""


class MessageSection(NamedTuple):
    """A section: what its messages mean, and the next step."""

    id: str
    text: str

    @property
    def messages(self) -> tuple[str, ...]:
        """The quoted messages, if its first line consists of them."""
        first = self.text.partition("\n")[0]
        return tuple(re.findall(r"`([^`]+)`", first)) if re.fullmatch(r"`[^`]+`(, `[^`]+`)*", first) else ()


@cache
def message_sections() -> tuple[MessageSection, ...]:
    """Read all sections."""
    files = sorted(Path(disttest.__file__).parent.rglob("messages.md"))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return tuple(MessageSection(name, section.strip()) for name, section in _SECTION.findall(text))


def section_named(name: str) -> MessageSection | None:
    """Return the section with an id."""
    return next((each for each in message_sections() if each.id == name), None)


def in_terminal(section: MessageSection) -> str:
    """Return a section for a terminal: wrapped, without marks, and without the targets of links, which lead nowhere there."""
    plain = _LINK.sub(r"\1", section.text).replace("**", "")
    # The quotes in the first line are not wrapped, so that a message can be searched for.
    quotes, gap, rest = plain.partition("\n\n") if section.messages else ("", "", plain)
    return f"{section.id}\n{quotes}{gap}" + "\n\n".join(map(_wrapped, rest.split("\n\n")))


def _wrapped(paragraph: str) -> str:
    """Wrap a paragraph between words, and never inside of a command or an option, which must be copied whole."""
    whole = _CODE.sub(lambda code: code[0].replace(" ", _KEPT_SPACE), " ".join(paragraph.split()))
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    text = textwrap.fill(whole, width, break_on_hyphens=False, break_long_words=False)
    return text.replace(_KEPT_SPACE, " ")


def literals(quoted: str) -> list[str]:
    """Return the parts of a quoted message that do not vary."""
    return _VARIES.split(quoted)


def id_of(message: str) -> str:
    """Return the id of a message; empty for an unknown one. Of several quotes that fit, the most literal counts."""
    beginning = message[refused.end() if (refused := _REFUSED.match(message)) else 0 :][:_LONGEST]
    found = (quote for quote in _quotes(message_sections()) if quote.pattern.match(beginning))
    return max(found, key=lambda quote: (quote.literal, quote.id), default=_NO_QUOTE).id


class _Quote(NamedTuple):
    """A quoted message."""

    literal: int
    """Characters that do not vary."""
    id: str
    pattern: re.Pattern[str]


_NO_QUOTE = _Quote(0, "", re.compile(""))


# Compiled once: a run looks up the message of each failed test.
@cache
def _quotes(sections: tuple[MessageSection, ...]) -> tuple[_Quote, ...]:
    return tuple(
        _Quote(sum(map(len, literals(quoted))), section.id, _pattern(quoted))
        for section in sections
        for quoted in section.messages
    )


def _pattern(quoted: str) -> re.Pattern[str]:
    text = ".+?".join(map(re.escape, literals(quoted)))
    for one, more in (
        ("rank\\ ", "ranks?\\ "),
        ("waits", "waits?"),
    ):  # the page quotes the message about one rank
        text = text.replace(one, more)
    return re.compile(text, re.DOTALL)
