"""How GitHub's runner finds commands in the output of a step: a reference for tests, written from what is known of it.

Lines end at LF, CR or both. White space before a command is trimmed; ``::name…::`` counts at the beginning of a line,
``##[name…]`` anywhere; names are compared without case. The comparison is the one of a language: characters without a
width do not count.
"""

from __future__ import annotations

import re
import unicodedata

NAMES = frozenset(
    {
        *("add-mask", "add-matcher", "add-path", "debug", "echo", "endgroup", "error", "group", "notice"),
        *("remove-matcher", "save-state", "set-env", "set-output", "stop-commands", "warning"),
    }
)


def commands_in(output: str) -> list[str]:
    """The lines that the runner takes for commands, tokens of stop-commands aside: that nothing is hidden behind it."""
    return [line for line in re.split(r"\r\n|\r|\n", output) if _name(line) in NAMES]


def _name(line: str) -> str:
    seen = "".join(
        character
        for character in line
        if unicodedata.category(character) not in ("Cf", "Cc") or character.isspace()
    )
    seen = seen.lstrip("\ufeff").strip()
    if seen.startswith("::") and "::" in seen[2:]:
        return seen[2:].partition("::")[0].split(" ")[0].lower()
    if (start := seen.find("##[")) >= 0 and "]" in seen[start:]:
        return seen[start + 3 :].partition("]")[0].split(" ")[0].lower()
    return ""
