"""Hooks of MkDocs: links to files outside of ``docs/`` lead to the repository, and roles of docstrings become code."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_UPWARD = re.compile(r"\]\((\.\./[^)\s]+)\)")
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(?=<code>)")
"""Docstrings have reStructuredText's roles; mkdocstrings renders Markdown, which has none."""


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace the links of a page before it becomes HTML."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def link(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[1]))
        inside = path == "docs" or path.startswith("docs/")
        return found[0] if inside else f"]({config.extra['repository']}/blob/main/{path})"

    return _UPWARD.sub(link, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Remove the roles in front of names, and the second colon in front of blocks of code."""
    return _ROLE.sub("", html).replace("::</p>", ":</p>")
