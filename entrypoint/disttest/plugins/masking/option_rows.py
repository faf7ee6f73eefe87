"""``--mask``."""

from __future__ import annotations

from disttest.options.option import of_every_run
from disttest.options.values import LINES

SHORTEST = 4
"""Characters of the shortest value that is hidden: a shorter one would be found everywhere."""

MASK = of_every_run(
    "mask",
    LINES,
    "Hide this value in logs and reports; once for each, or one a line.",
    default=(),
    many=True,
    secret=True,
    shortest=SHORTEST,
)
