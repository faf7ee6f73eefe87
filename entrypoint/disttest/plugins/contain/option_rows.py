"""The option ``--isolate-files`` and the setting ``fast-spawn``."""

from __future__ import annotations

from disttest.options.option import of_every_run
from disttest.options.values import SWITCH

ISOLATE_FILES = of_every_run(
    "isolate-files",
    SWITCH,
    "Run tests without a world in a process for each file, under a time limit; spawned processes start with torch imported.",
    default=False,
    otherwise="false",
    repeated=True,
    common=True,
    formerly=(("contain", "--isolate-files"),),
)
FAST_SPAWN = of_every_run(
    "fast-spawn",
    SWITCH,
    "With isolate-files: fork what tests spawn from a process with torch imported, instead of starting interpreters.",
    default=True,
    no_flag=True,
)

OPTIONS = (ISOLATE_FILES, FAST_SPAWN)
