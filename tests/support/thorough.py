"""Tests and variants that run only with ``--thorough``, as before a release: a cheaper one shows the same behaviour.

A test that is marked ``thorough(reason)`` runs only then; the reason names what shows the same behaviour in every run.
Inside of a test, :func:`variants` leaves all but the first out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
from slow_tests import mark_with_reason

T = TypeVar("T")
_wanted = False


def is_wanted() -> bool:
    """Whether everything runs."""
    return _wanted


def want_all() -> None:
    """Run everything from now on."""
    global _wanted
    _wanted = True


def variants(first: T, *others: T) -> Sequence[T]:
    """The first of the variants; all of them with ``--thorough``."""
    return (first, *others) if _wanted else (first,)


class Thorough:
    """The plugin of pytest."""

    def __init__(self) -> None:
        self._left_out = 0

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        marked = [item for item in items if mark_with_reason(item, "thorough")]
        if _wanted or not marked:
            return
        self._left_out = len(marked)
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in marked]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left_out:
            terminalreporter.write_line(
                f"{self._left_out} tests run only with --thorough (make test-all THOROUGH=1)"
            )
