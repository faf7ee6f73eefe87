"""Interface for a plugin that watches the machine while a world runs tests."""

from __future__ import annotations

from collections.abc import Iterable


class WorldWatch:
    """Watches the machine for one world. A plugin overrides the methods that it needs."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`look` should be called; -1 for none."""
        return -1

    def look(self, nodeid: str, *, at_once: bool = False) -> None:
        """Look at the machine; called when the descriptor is readable, and five times a second during a test.

        Args:
            nodeid: the running or last test; empty before the first one.
            at_once: look even if that is expensive: a test or the world ends.
        """

    def clean(self) -> Iterable[tuple[str, str]]:
        """Clean up when the processes of the world have ended, perhaps more than once; return notes with their node ids."""
        return ()
