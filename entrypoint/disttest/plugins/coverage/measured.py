"""Coverage of a rank: measured apart from the process that it was forked from, and left in a file for the controller.

coverage saves what it has measured when an interpreter ends, which a rank does not: it leaves. And a fork goes on writing into
the data of its parent. So each rank measures for itself, by the configuration of the controller, and saves after each test.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disttest.model import Frozen

_FILE = "coverage"
_DATA = ":data:"
"""How coverage is told that a configuration follows, and not the name of a file with one."""

_OF_THE_WHOLE_RUN = ["no-data-collected", "module-not-imported", "module-not-measured", "already-imported"]
"""What coverage warns of, and no single rank can say."""


class CoverageOrder(Frozen):
    """Describes what ranks measure."""

    config: str
    """The controller's configuration, in the form in which coverage passes it to other processes."""
    by_test: bool = False
    """Whether the test that ran a line is kept too (``--cov-context=test``)."""


def coverage_of_controller(config: pytest.Config) -> CoverageOrder | None:
    """What this process measures; None where it measures nothing, or with a coverage that cannot be handed on."""
    current = _current()
    serialize = getattr(getattr(current, "config", None), "serialize", None)
    if serialize is None:
        return None
    return CoverageOrder(config=serialize(), by_test=getattr(config.option, "cov_context", None) == "test")


def merge_coverage(folder: Path) -> None:
    """Add what the ranks of a world have measured to what this process measures."""
    current = _current()
    if current is None:
        return
    from coverage import CoverageData

    for path in folder.glob(f"{_FILE}.*"):
        data = CoverageData(basename=str(path))
        data.read()
        current.get_data().update(data)


_measuring: list[_Measuring] = []
"""One in a rank that is measured."""


def begin_coverage(order: CoverageOrder, config: pytest.Config, folder: Path) -> None:
    """Measure this process from here on, into a file of its own in the folder of its world."""
    _measuring.append(_Measuring(order, folder))
    config.pluginmanager.register(_measuring[-1], "disttest-coverage")


def save_coverage() -> None:
    """Write what was measured so far, if anything is: the next test may end this process."""
    for measuring in _measuring:
        measuring.save()


class _Measuring:
    """The pytest plugin of a rank that is measured."""

    def __init__(self, order: CoverageOrder, folder: Path) -> None:
        """Let go of what was inherited, and begin."""
        self._order, self._folder = order, folder
        self._coverage = self._begin()
        os.register_at_fork(after_in_child=self._begin_again)

    def _begin(self) -> Any:
        import coverage

        inherited = _current()
        if inherited is not None:
            inherited._auto_save = False  # noqa: SLF001  # it is the parent's to save
            inherited.stop()
        own = coverage.Coverage(config_file=f"{_DATA}{self._order.config}", data_suffix=False, messages=False)
        own.set_option("run:data_file", str(self._folder / f"{_FILE}.{os.getpid()}"))
        own.set_option("run:disable_warnings", _OF_THE_WHOLE_RUN)
        own.set_option(
            "run:patch", []
        )  # what the user has asked of it is done, in the process that this one was forked from
        own.start()
        return own

    def _begin_again(self) -> None:
        """In a fork of this rank."""
        self._coverage = self._begin()

    def save(self) -> None:
        """Write what was measured so far."""
        self._coverage.save()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """What runs from here on is this test's."""
        self._switch(item, "setup")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """The same for its call."""
        self._switch(item, "run")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """The same for its tear-down."""
        self._switch(item, "teardown")
        return (yield)

    def _switch(self, item: pytest.Item, phase: str) -> None:
        if self._order.by_test:
            self._coverage.switch_context(f"{item.nodeid}|{phase}")


def _current() -> Any:
    """What measures this process, if anything does."""
    coverage = sys.modules.get("coverage")
    return coverage.Coverage.current() if coverage is not None and hasattr(coverage, "Coverage") else None
