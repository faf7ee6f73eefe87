"""pytest's ``--stepwise`` in a run with worlds, which do not run in the order of the tests in the files."""

from __future__ import annotations

from typing import Any

import pytest


class WorldsInSteps:
    """Lets the next run continue at the first test that has not passed.

    pytest continues at the test that failed, and takes every test before it for one that has passed.
    """

    def __init__(self, stepwise: Any) -> None:
        """Take pytest's own plugin."""
        self._stepwise = stepwise
        self._ignores_one = stepwise.skip
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a test."""
        if not report.failed:
            # A test that was interrupted in its call has passed its set-up.
            if report.when == "teardown":
                self._passed.add(report.nodeid)
        elif self._ignores_one:  # --stepwise-skip
            self._ignores_one = False
        else:
            self._failed.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Replace the test that pytest is about to save."""
        cached = self._stepwise.cached_info
        left = (item for item in session.items if item.nodeid not in self._passed - self._failed)
        if cached.last_failed and (first := next(left, None)) is not None:
            # Since pytest 9.2 an item has an `id`, and --stepwise compares that.
            cached.last_failed = getattr(first, "id", first.nodeid)
