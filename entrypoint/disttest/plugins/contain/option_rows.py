"""``--contain`` and ``--fast-spawn``."""

from __future__ import annotations

from disttest.options.option import of_every_run
from disttest.options.values import SWITCH

CONTAIN = of_every_run(
    "contain",
    SWITCH,
    "Run tests without a world in a process for each file, under a time limit.",
    default=False,
    otherwise="false",
    repeated=True,
)
FAST_SPAWN = of_every_run(
    "fast-spawn",
    SWITCH,
    "Fork what tests without a world start by spawn from a process that has imported torch.",
    default=False,
    otherwise="false",
    repeated=True,
)

OPTIONS = (CONTAIN, FAST_SPAWN)
