"""Cut texts that are longer than a message or a line of the journal can carry."""

from __future__ import annotations

from typing import Any

LONGEST_TEXT = 256 * 1024
"""Characters of one text, which is more than a report shows."""


def shorten(text: str) -> str:
    """Keep the head and the tail of a text that is too long; return any other text unchanged."""
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    mark = f"[disttest: {len(text) - 2 * half} characters cut: a report has room for {LONGEST_TEXT:,}]"
    return f"{text[:half]}\n\n{mark}\n\n{text[-half:]}"


def shorten_all(value: Any) -> Any:
    """Shorten every text in a tree of dicts and lists."""
    if isinstance(value, str):
        return shorten(value)
    if isinstance(value, dict):
        return {shorten_all(key): shorten_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shorten_all(item) for item in value]
    return value
