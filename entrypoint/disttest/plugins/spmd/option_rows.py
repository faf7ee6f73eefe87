"""The option ``--spmd``."""

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
    common=True,
)
"""Several sizes run one after another, each in a separate pytest process that knows a single size."""
