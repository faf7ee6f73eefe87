"""A hook of MkDocs: links of the pages to files outside of ``docs/`` lead to the repository."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_UPWARD = re.compile(r"\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace the links of a page before it becomes HTML."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def link(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[1]))
        inside = path == "docs" or path.startswith("docs/")
        return found[0] if inside else f"]({config.extra['repository']}/blob/main/{path})"

    return _UPWARD.sub(link, markdown)
