"""Requirements of a run on the parent that it is a fork of."""

from __future__ import annotations

from disttest.model import Frozen


class ForkTerms(Frozen):
    """Requirements read from the options of the run."""

    seed: int
    """Seed of the run, from which the ``PYTHONHASHSEED`` of all processes is derived."""
    imports: tuple[str, ...] = ()
    """Modules that the parent may have imported in addition to torch, pytest and the plugin."""
