"""Texts of tests in Markdown and in its HTML: each is shown as it is, and has no effect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from disttest.reports.text import clean, one_line


def escape(text: str) -> str:
    """Return ``text`` so that Markdown shows it as it is, with no more marks than it needs to be read as plain text."""
    return _SPECIAL.sub(r"\\\g<0>", in_html(text))


# Besides the marks of CommonMark: ~ strikes out, $ begins a formula, and @ notifies a user of a code host.
_SPECIAL = re.compile(r"[\\`*\[\]|~$@]|(?<![^\W_])_|_(?![^\W_])|^[ \t]*[#+-]", re.MULTILINE)
"""A mark of Markdown; an underscore between letters is none."""


def in_html(text: str) -> str:
    """Return ``text`` for a line of HTML, in which Markdown has no marks."""
    return clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def cell(text: str) -> str:
    """Escape ``text`` for a cell of a table."""
    return escape(one_line(text))


def code(text: str, limit: int = 300) -> str:
    """Return ``text`` as a code span, for lines and cells of Markdown."""
    return exact_code(one_line(text, limit))


def exact_code(text: str) -> str:
    """Return ``text`` as a code span, without a cut and with its spaces."""
    text = clean(text)
    # CommonMark: a code span ends at a run of backticks as long as its first one, and loses one space at each
    # end.
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text[:1] == "`" or text[-1:] == "`" else ""
    return f"{fence}{space}{text}{space}{fence}"


def code_cell(text: str) -> str:
    """Return ``text`` as a code span for a cell of a table, where even code ends at a bar."""
    return code(text).replace("|", "\\|")


def code_in_html(text: str) -> str:
    """Return ``text`` as code for a line of HTML."""
    return f"<code>{in_html(one_line(text, 300))}</code>"


def fenced(text: str) -> Iterator[str]:
    """Yield a fenced block with ``text`` unchanged; the fence is longer than any inside."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    yield f"{fence}text"
    yield text
    yield fence
    yield ""
