"""Tables of known messages with advice for each. Every slug has its entry in docs/errors.md."""

from __future__ import annotations

import re
from typing import NamedTuple

from disttest.model import Frozen


class Advice(Frozen):
    """One line of advice. ``slug`` names its entry in the docs, which ``disttest explain`` prints."""

    slug: str
    action: str

    def __str__(self) -> str:
        return f"{self.action} (disttest explain {self.slug})"


class Known(NamedTuple):
    """A row of a table."""

    slug: str
    pattern: str
    """Regular expression for the message; empty for disttest's own findings, which are looked up by slug."""
    action: str


class AdviceTable:
    """Advice by slug, and by a pattern of the message; the first matching row counts."""

    def __init__(self, *rows: Known) -> None:
        self._by_slug = {slug: Advice(slug=slug, action=action) for slug, _, action in rows}
        self._patterns = tuple(
            (re.compile(pattern, re.IGNORECASE | re.DOTALL), slug) for slug, pattern, _ in rows if pattern
        )

    @property
    def slugs(self) -> tuple[str, ...]:
        """All slugs of the table."""
        return tuple(self._by_slug)

    def of(self, slug: str) -> Advice:
        """Return the advice of a slug."""
        return self._by_slug[slug]

    def find(self, message: str) -> Advice | None:
        """Return the advice for a message; None for an unknown one."""
        return next((self.of(slug) for pattern, slug in self._patterns if pattern.search(message)), None)
