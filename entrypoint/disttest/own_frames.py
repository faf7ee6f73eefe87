"""Files whose frames are those of the harness around a test, and of no user."""

import re

HARNESS_PLACES = (
    "/disttest/runtime/",
    "/disttest/extras/",
    "/disttest/plugins/",
    "/disttest/plugin_manager.py",
)
"""Parts of their paths, wherever the package is."""
HARNESS = "|".join(map(re.escape, HARNESS_PLACES))
"""The same as a regular expression."""
