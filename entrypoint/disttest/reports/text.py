"""Make text from tests safe to show: no escape sequences, no invalid characters, no floods."""

from __future__ import annotations

import math
import re

from disttest.model import rank_name

REPLACEMENT = "\ufffd"

_ANSI = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system command: window titles, hyperlinks
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # device control and other strings up to their terminator
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b[ -/]*[0-~]?"  # everything else that starts with an escape
)
# Characters that XML 1.0 forbids. A series of them (a hole in a log is a million NULs) becomes one mark.
_ILLEGAL = re.compile(
    r"[^\t\n\u0020-\u007e\u0085\u00a0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]+"
)

# Cyan, yellow, green, purple, blue, by their numbers in terminals; red is reserved for failures.
_RANK_COLOURS = (36, 33, 32, 35, 34)


def clean(text: str | bytes) -> str:
    """Return ``text`` without ANSI sequences, and with only the characters that XML 1.0 allows."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    # Nearly every name and message needs no cleaning.
    if text.isprintable():
        return text
    # A progress bar rewrites its line with `\r`; each of its states becomes a line.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _ILLEGAL.sub(REPLACEMENT, _ANSI.sub("", text))


def one_line(text: str | bytes, limit: int = 400) -> str:
    """Return ``text`` cleaned, on one line and no longer than ``limit`` characters."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def shorten(text: str, limit: int, *, whole: str = "disttest explain") -> str:
    """Cut the middle out of a text longer than ``limit`` characters, and state the cut.

    The beginning shows the failure and the end its place; the end matters more and gets two thirds. A text that the
    mark would not shorten stays complete.

    Args:
        text: the text.
        limit: its maximum length.
        whole: the command that shows the whole text, for the mark.
    """
    if len(text) <= limit:
        return text
    head = _up_to_newline(text[: limit // 3])
    tail = _from_newline(text[len(text) - (limit - limit // 3) :]) if limit else ""
    cut = len(text) - len(head) - len(tail)
    mark = f"[… {count(cut, 'character')} cut; {whole} shows the whole text …]"
    return text if cut <= len(mark) else f"{head}\n{mark}\n{tail}".strip("\n")


def _up_to_newline(text: str) -> str:
    cut = text.rfind("\n")
    return text[:cut] if cut > len(text) // 2 else text


def _from_newline(text: str) -> str:
    cut = text.find("\n")
    return text[cut + 1 :] if 0 <= cut < len(text) // 2 else text


def count(number: int, noun: str) -> str:
    """Return ``1 test``, ``2 tests``, ``12,000 tests``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format a duration for people: ``4 ms``, ``2.3 s``, ``4 min 05 s``, ``1 h 02 min``.

    A negative duration, from a clock that went backwards, becomes 0.
    """
    if not math.isfinite(seconds) or seconds <= 0:
        return "0 s"
    # From 0.9995 s on, rounding would print "1000 ms".
    if seconds < 0.9995:
        return f"{max(1, round(seconds * 1000))} ms"
    # From 59.95 s on, rounding would print "60.0 s".
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def size(number: int) -> str:
    """Format a number of bytes for people: ``512 B``, ``3.2 MB``."""
    value = float(number)
    for unit in ("B", "kB", "MB"):
        if value < 999.95:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def rank_tag(rank: int, *, colour: bool) -> str:
    """Return the prefix of a line printed by a rank: ``[rank 1]``, in the colour of the rank."""
    tag = f"[{rank_name(rank)}]"
    return f"\x1b[{_RANK_COLOURS[rank % len(_RANK_COLOURS)]}m{tag}\x1b[0m" if colour else tag
