"""``--last-failed``."""

from __future__ import annotations

from disttest.options.option import PLANS, rows_of
from disttest.options.values import SWITCH

LAST_FAILED = rows_of("run")(
    "last-failed",
    SWITCH,
    "Run only the tests that failed in the newest results here, or in those of --results; all if none did.",
    default=False,
    aliases=("--lf",),
    title=PLANS,
    for_command=True,
    in_file=False,
)
