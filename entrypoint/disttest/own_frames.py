"""Source files whose stack frames belong to the harness around a test."""

import re

HARNESS_PLACES = (
    "/disttest/runtime/",
    "/disttest/extras/",
    "/disttest/plugins/",
    "/disttest/plugin_manager.py",
)
"""Parts of their paths, independent of where the package is installed."""
HARNESS = "|".join(map(re.escape, HARNESS_PLACES))
"""The same as a regular expression."""
