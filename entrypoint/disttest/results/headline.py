"""Headline of a failure: the exception and its message in one line, with the values from the lines below."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, takewhile

from disttest.model import short_place
from disttest.outgoing import shorten
from disttest.results.hang_findings import is_library

_TRACEBACK = "Traceback (most recent call last):"
# ``AssertionError:`` and ``Scalars are not equal!`` name the kind of failure; the lines below name the failure.
_OPEN_END = re.compile(r"[!:]$")
# Hints that torch's TestCase appends to each failure (PYTORCH_PRINT_REPRO_ON_FAILURE).
_ADVICE = ("To execute this test", "This message can be suppressed")
_DISPENSABLE = re.compile(r"Greatest relative difference|(Absolute|Relative) difference: ")
# `torch.testing.assert_close`: "Greatest absolute difference: 1.0 at index (2,) (up to 1e-05 allowed)".
_DIFFERENCE = re.compile(
    r"Greatest absolute difference: (?P<by>\S+) at index (?P<index>\(.*?\)) \(up to (?P<allowed>\S+) allowed\)"
)
# The number of different elements matters less than their place.
_LATER = "Mismatched elements"
_NEXT_THREAD = re.compile(r"Thread \d+ exited with ")
# Line of torch.multiprocessing before the traceback of a spawned process that has raised.
_SPAWNED = re.compile(r"^-- Process (?P<rank>\d+) terminated with the following error:$", re.MULTILINE)
# The same for a process without a traceback (``torch.multiprocessing.spawn.ProcessContext.join``).
_SPAWNED_DIED = re.compile(
    r"ProcessExitedException: process (?P<rank>\d+) terminated with (?:signal (?P<signal>\w+)|exit code (?P<code>-?\d+))$"
)
_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d{1,9}), in ', re.MULTILINE)
_MOST_LINES = 2
# Maximum number of characters of an added line.
_LONGEST = 300


def headline(text: str) -> str:
    """Return the first line of an exception's text, with the next ones if it is not specific enough."""
    # A regular expression takes half a minute for 70 MB.
    text = shorten(text)
    lines = [line.strip() for line in text.strip().splitlines()]
    if not lines:
        return ""
    first, *rest = lines
    if spawned := _SPAWNED.search(text):
        return f"rank {spawned['rank']} of mp.spawn failed{_place_of(text)}: {raised_line(text[spawned.end() :])}"
    if died := _SPAWNED_DIED.search(first):
        how = f"was killed by {died['signal']}" if died["signal"] else f"exited with code {died['code']}"
        return f"rank {died['rank']} of mp.spawn {how}"
    if not _OPEN_END.search(first):
        return first
    # torch's threaded classes put the exceptions of all threads into one text.
    if _TRACEBACK in rest:
        own = takewhile(lambda line: not _NEXT_THREAD.match(line), text.strip().splitlines()[1:])
        cause = raised_line("\n".join(own))
        return f"{first} {cause}".strip()
    # The sort is stable, so other lines keep their order.
    below = sorted(_values(rest), key=lambda line: line.startswith(_LATER))
    told = [line[:_LONGEST].removesuffix(".") for line in below[:_MOST_LINES]]
    return _where_first(first, told) or " ".join([first, "; ".join(told)]).strip()


def _place_of(text: str) -> str:
    """`` at test_step.py:39``: the innermost line of a traceback outside libraries; empty if there is none."""
    own = [frame for frame in _FRAME.finditer(text) if not is_library(frame["file"])]
    return f" at {short_place(own[-1]['file'], int(own[-1]['line']))}" if own else ""


def _where_first(first: str, told: list[str]) -> str:
    """Put the place of the largest difference first in a comparison of tensors, and name NaN; otherwise empty."""
    found = _DIFFERENCE.match(told[0]) if told else None
    if found is None:
        return ""
    what = f"off by {found['by']} (up to {found['allowed']} allowed)"
    what = "NaN" if found["by"] == "nan" else what
    kind, colon, words = first.rpartition(": ")
    return f"{kind}{colon}{what} at index {found['index']}: {words} {'; '.join(told[1:])}".strip()


def _values(lines: list[str]) -> Iterator[str]:
    told = (line for line in lines if line)
    for line in islice(told, 6):
        if line.startswith(_ADVICE):
            return
        if not _DISPENSABLE.match(line):
            yield line


def raised_line(text: str) -> str:
    """Return the headline of the last traceback in a text, otherwise the last line; empty if there is none.

    The last line alone would not do: messages have several lines, and torch appends hints.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    # The last traceback is that of the exception itself; those before it are its causes and contexts.
    outer = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    below = lines[outer[-1] + 1 :] if outer else []
    # Frames are indented, so the first line without an indent is the exception.
    named = next((number for number, line in enumerate(below) if not line[0].isspace()), None)
    return headline("\n".join(below[named:])) if named is not None else lines[-1] if lines else ""
