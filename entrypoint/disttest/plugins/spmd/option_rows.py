"""``--spmd``."""

from __future__ import annotations

from disttest.options.option import of_every_run
from disttest.options.values import WORLD_SIZES

SPMD = of_every_run(
    "spmd",
    WORLD_SIZES,
    "Run every test in N ranks, each of which collects by itself, as torchrun -m pytest does; in turn for each N.",
    default=(),
    otherwise="as marked",
    shapes_tests=True,
)
"""Several sizes are run one after another, each by a pytest process of its own, which knows one size only."""
