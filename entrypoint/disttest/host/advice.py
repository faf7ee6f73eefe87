"""Tables of known messages: what to do about each. Pure; each slug has its entry in docs/errors.md."""

from __future__ import annotations

import re
from typing import NamedTuple

from disttest.model import Frozen

DOCS = "docs/errors.md"


class Advice(Frozen):
    """One line of advice; ``slug`` names its entry in the docs."""

    slug: str
    action: str

    def __str__(self) -> str:
        return f"{self.action} ({DOCS}#{self.slug})"


class Known(NamedTuple):
    """A row of a table."""

    slug: str
    pattern: str
    """What the message looks like; empty for findings of our own, which are looked up by their slug."""
    action: str


class AdviceTable:
    """Advice by slug, and by what a message looks like; the first row that fits counts."""

    def __init__(self, *rows: Known) -> None:
        self._by_slug = {slug: Advice(slug=slug, action=action) for slug, _, action in rows}
        self._patterns = tuple(
            (re.compile(pattern, re.IGNORECASE | re.DOTALL), slug) for slug, pattern, _ in rows if pattern
        )

    @property
    def slugs(self) -> tuple[str, ...]:
        """All there are."""
        return tuple(self._by_slug)

    def of(self, slug: str) -> Advice:
        """The advice of a slug."""
        return self._by_slug[slug]

    def find(self, message: str) -> Advice | None:
        """The advice for a message; None for an unknown one."""
        return next((self.of(slug) for pattern, slug in self._patterns if pattern.search(message)), None)
