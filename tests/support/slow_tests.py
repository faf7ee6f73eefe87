"""Finds tests that take much processor time and are not marked ``slow`` with a reason.

Only processor time counts, of the test's call, with the processes that it has waited for: a loaded machine does not make
a test slow. It may still triple, with cold caches, busy siblings of a processor and a slow machine, and ranks on a loaded
machine spin while they wait for each other. So only a test at eight times its limit fails; others above it are listed. A
test that imports much (torch, if it runs alone) is not judged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LIMITS_S = {"unit": 0.25, "core": 5.0, "integration": 5.0}
"""Processor time that a test below this folder of ``tests`` may take without a reason."""
FAILS_AT = 8
"""Multiple of its limit with which a test without a reason fails."""
MANY_MODULES = 20
_TESTS = Path(__file__).parents[1]
_listed = pytest.StashKey[list[str]]()


def mark_with_reason(item: pytest.Item, name: str) -> pytest.Mark | None:
    """A mark of a test; None if it has none.

    Raises:
        pytest.UsageError: the mark gives no reason.
    """
    mark = item.get_closest_marker(name)
    if mark is not None and not (len(mark.args) == 1 and isinstance(mark.args[0], str)):
        raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{name} takes one reason")
    return mark


def limit_of(item: pytest.Item) -> float | None:
    """The limit of a test; None if it has none, or a reason to take longer.

    Raises:
        pytest.UsageError: its mark gives no reason.
    """
    mark = mark_with_reason(item, "slow")
    below = item.path.relative_to(_TESTS).parts if item.path.is_relative_to(_TESTS) else ()
    return LIMITS_S.get(below[0]) if mark is None and below else None


def judged(took_s: float, limit_s: float, imported: int) -> str:
    """What is said of a test that took so long: nothing, ``slow``, or ``fails``."""
    if imported > MANY_MODULES or took_s <= limit_s:
        return ""
    return "fails" if took_s > FAILS_AT * limit_s else "slow"


def processor_s(
    times: Callable[[], os.times_result] = os.times,
) -> float:  # bound: tests replace such functions
    """Processor time of this process, and of those that it has waited for."""
    return sum(times()[:4])


class SlowTests:
    """The plugin of pytest."""

    def __init__(self, clock: Callable[[], float] = processor_s) -> None:
        """With another clock in its own tests."""
        self._clock = clock

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        limit_s = limit_of(item)
        if limit_s is None:
            return (yield)
        before_s, modules = self._clock(), len(sys.modules)
        result = yield
        took_s = self._clock() - before_s
        said = f"took {took_s:.2f} s of processor time, more than {limit_s:g} s"
        match judged(took_s, limit_s, len(sys.modules) - modules):
            case "fails":
                pytest.fail(
                    f"{said}: make it cheaper, or give the reason in @pytest.mark.slow", pytrace=False
                )
            case "slow":
                item.config.stash.setdefault(_listed, []).append(f"{item.nodeid} {said}")
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in terminalreporter.config.stash.get(_listed, []):
            terminalreporter.write_line(f"SLOW {line}")
