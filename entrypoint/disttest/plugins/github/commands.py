"""GitHub's workflow commands, outputs and step summary. No other module writes them.

The paths in ``GITHUB_OUTPUT`` and ``GITHUB_STEP_SUMMARY`` are arguments of the functions here. Source:
https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path

MAX_MESSAGE = 4096
"""Longest message of an annotation, in characters (https://github.com/actions/toolkit/issues/734)."""
MAX_ANNOTATIONS = 10
"""Number of errors, and of warnings, that GitHub shows for one step."""
MAX_SUMMARY_BYTES = 1024 * 1024
"""Size of a step summary beyond which GitHub drops all of it."""

_WITHOUT_WIDTH = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffd\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_NOTHING = f"[{_WITHOUT_WIDTH}]*"
_COMMAND = re.compile(rf"((?:^|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])[\s{_WITHOUT_WIDTH}]*):{_NOTHING}:")
_OLD_COMMAND = re.compile(rf"#{_NOTHING}#{_NOTHING}\[")


def escape_data(text: str) -> str:
    """Escape the message of a command. The percent sign is first, because the other escapes add percent signs."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """Escape the value of a command's property."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def command(name: str, message: str = "", **properties: str | int | None) -> str:
    """Return one workflow command as a line without its newline. Empty properties are omitted."""
    given = ",".join(
        f"{key}={escape_property(str(value))}" for key, value in properties.items() if value not in (None, "")
    )
    return f"::{name}{' ' if given else ''}{given}::{escape_data(message)}"


def annotation(
    level: str, message: str, *, title: str = "", file: str | None = None, line: int | None = None
) -> str:
    """Return the command that annotates a line of code, or the whole run if no file is given.

    Args:
        level: ``error``, ``warning`` or ``notice``.
        message: cut at :data:`MAX_MESSAGE` characters, with the cut shown.
        title: shown above the message.
        file: relative to the root of the repository.
        line: counted from 1.
    """
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 1] + "…"
    return command(level, message, title=title, file=file, line=line if file else None)


def group(title: str) -> str:
    """Return the command that begins a foldable block of log lines."""
    return command("group", " ".join(title.split()))


def end_group() -> str:
    """Return the command that ends a foldable block."""
    return command("endgroup")


def harmless(text: str) -> str:
    """Return the text with every workflow command, of the newer or the older form, made ineffective."""
    # The runner also ends lines at lone carriage returns, trims any white space, and compares as a human language
    # does: characters without a width do not count. The text is therefore changed visibly.
    # Hiding the text behind `stop-commands` fails where the runner reads two outputs at the same time: it has only
    # one token.
    return _OLD_COMMAND.sub("## [", _COMMAND.sub(r"\1: :", text))


def write_output(path: Path, name: str, value: str) -> None:
    """Append an output of the step to the file that ``GITHUB_OUTPUT`` names.

    Raises:
        ValueError: the name is not a valid name of an output.
    """
    if not name or not name.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"not the name of an output: {name!r}")
    # Random: a value that contained a known delimiter could add outputs to the step.
    delimiter = f"end-{secrets.token_hex(16)}"
    with path.open("a", encoding="utf-8", errors="replace") as file:
        file.write(f"{name}<<{delimiter}\n{value}\n{delimiter}\n")


def append_summary(path: Path, markdown: str) -> bool:
    """Append to the file that ``GITHUB_STEP_SUMMARY`` names."""
    # Return False, and write nothing, if the text does not fit.
    present = path.stat().st_size if path.exists() else 0
    addition = f"{markdown.rstrip()}\n\n".encode(errors="replace")
    if present + len(addition) > MAX_SUMMARY_BYTES:
        return False
    with path.open("ab") as file:
        file.write(addition)
    return True
