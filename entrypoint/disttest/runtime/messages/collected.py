"""Description of collected tests: node ids with the values of their parameters.

Processes that were not forked from each other may have different values under one id: parameters from a set, the clock
or a directory. Their ranks would run different tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pytest
from _pytest._io.saferepr import saferepr

from disttest.model import WorldShape
from disttest.runtime.messages.protocol import clean_text

_ADDRESS = re.compile(r" (at 0x[0-9a-f]+|id='\d+')")
_LONGEST = 200


def describe_collected(items: Iterable[pytest.Item]) -> dict[str, str]:
    """Map node ids to parameters; empty for a test without parameters."""
    return {item.nodeid: _parameters(item) for item in items}


def _parameters(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    values = callspec.params if callspec is not None else {}
    return ", ".join(
        # Python's default `repr` and that of mocks have the address of the object, which differs in each process.
        f"{name}={clean_text(_ADDRESS.sub('', saferepr(value, maxsize=_LONGEST)))}"
        for name, value in values.items()
        # The world is part of the node id.
        if not isinstance(value, WorldShape)
    )


def describe_difference(nodeid: str, mine: Mapping[str, str], first: Mapping[str, str], who: str) -> str:
    """Describe how two processes differ for one id; empty if they agree.

    Args:
        nodeid: the test.
        mine: tests collected by one process.
        first: tests collected by the other process.
        who: name of the other process.
    """
    here, there = mine.get(nodeid), first.get(nodeid)
    if here == there:
        return "" if here is not None else "it has not collected this test"
    what, other = (
        "has not collected it" if values is None else f"has {values or 'no parameters'}"
        for values in (here, there)
    )
    return f"it did not collect the same test as {who}: it {what}, {who} {other}"


def describe_extra(mine: Mapping[str, str], first: Mapping[str, str], who: str) -> str:
    """Describe tests that one process has collected and the other has not; empty if there are none."""
    extra = sorted(mine.keys() - first.keys())
    if not extra:
        return ""
    tests = "1 test" if len(extra) == 1 else f"{len(extra)} tests"
    return f"it collected {tests} that {who} did not: {', '.join(extra[:3])}{' …' if extra[3:] else ''}"
