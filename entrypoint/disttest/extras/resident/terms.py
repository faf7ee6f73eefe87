"""What a run asks of the parent that it is a fork of."""

from __future__ import annotations

from disttest.model import Frozen


class ForkTerms(Frozen):
    """Read from the options of the run."""

    seed: int
    """Of the run: all processes have one ``PYTHONHASHSEED``."""
    imports: tuple[str, ...] = ()
    """Modules that the parent may have imported besides torch, pytest and the plugin."""
