"""A hook of MkDocs: links of the pages to files outside of ``docs/`` lead to the repository."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\]\(\.\./([^)\s]+)\)")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """What the page says, before it becomes HTML."""
    return _OUTSIDE.sub(rf"]({config.extra['repository']}/blob/main/\1)", markdown)
