"""Limits of a packet."""

LOG_HEAD = 64 * 1024
"""Bytes of the beginning of each log: versions and settings that the test printed."""
LOG_TAIL = 256 * 1024
"""Bytes of its end, where it failed."""
LONGEST_SECRET = 16 * 1024
"""Bytes beyond a cut that are searched for secrets; a private key of 16,384 bits has 13 KB."""
FILE = 64 * 1024 * 1024
"""Largest other file, such as a recording; a larger one is named and left out."""
TOTAL = 256 * 1024 * 1024
"""Bytes of all of them, so that a packet can be attached somewhere."""
ISSUE = 60_000
"""Characters of the body of an issue; GitHub refuses more than 65,536."""
