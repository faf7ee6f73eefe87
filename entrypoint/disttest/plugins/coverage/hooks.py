"""Coverage of a rank: measured separately from the process that it was forked from, and left in a file for the
controller.

coverage saves its data when an interpreter ends, but a rank leaves by ``os._exit``. A fork also continues to write
into the data of its parent. Each rank therefore measures with the controller's configuration and saves after each
test. Files next to ``.coverage`` would be lost, or erased by the next rank that collects.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from disttest.hookspecs import hookimpl, of_pytest
from disttest.model import Frozen

if TYPE_CHECKING:
    import pytest

    from disttest.runtime.rank.rank_spec import RankSpec

_OF_PYTEST_COV = ("_cov", "_cov_contexts")
"""Plugins of pytest-cov that would measure a rank themselves."""
_FILE = "coverage"
_DATA = ":data:"
"""Prefix by which coverage recognises a configuration instead of the name of a file."""

_OF_THE_WHOLE_RUN = ["no-data-collected", "module-not-imported", "module-not-measured", "already-imported"]
"""Warnings of coverage that no single rank can decide."""


class CoverageOrder(Frozen):
    """The measurement that ranks perform."""

    config: str
    """The controller's configuration, in the form in which coverage passes it to other processes."""
    by_test: bool = False
    """Whether the test that ran a line is recorded, too (``--cov-context=test``)."""


_measuring: list[_Measuring] = []
"""The measurement of this process; one entry in a measured rank."""


@hookimpl
def disttest_collecting_arguments(config: pytest.Config) -> Sequence[str]:
    """Disable pytest-cov in other collecting processes: it would erase the data of this process at its start."""
    return ("--no-cov",) if config.pluginmanager.hasplugin("pytest_cov") else ()


@hookimpl
def disttest_settle(config: pytest.Config) -> CoverageOrder | None:
    """Return the measurement of this process; None without one, or if coverage cannot pass its configuration on."""
    serialize = getattr(getattr(_current(), "config", None), "serialize", None)
    if serialize is None:
        return None
    return CoverageOrder(config=serialize(), by_test=getattr(config.option, "cov_context", None) == "test")


@hookimpl
def disttest_process_configure(spec: RankSpec, config: pytest.Config) -> None:
    """Measure this process from now on, into a separate file in the folder of its world."""
    for name in _OF_PYTEST_COV:
        if config.pluginmanager.hasplugin(name):
            config.pluginmanager.unregister(name=name)
    # The controller reads the data of its own worlds only.
    if spec.partition is None and (order := spec.settled.get("coverage")) is not None:
        measuring = _Measuring(msgspec.convert(order, CoverageOrder), spec.scratch.parent)
        _measuring.append(measuring)
        config.pluginmanager.register(measuring, "disttest-coverage")


@hookimpl
def disttest_process_saves() -> None:
    """Write the data measured so far, because the next test may end this process."""
    for measuring in _measuring:
        measuring.save()


@hookimpl
def disttest_world_ended(scratch: Path) -> None:
    """Add the data of a world's ranks to the data of this process."""
    current = _current()
    if current is None:
        return
    from coverage import CoverageData

    # Each rank and each of its forks has a file of its pid.
    for path in scratch.glob(f"{_FILE}.*"):
        data = CoverageData(basename=str(path))
        data.read()
        current.get_data().update(data)


class _Measuring:
    """The pytest plugin of a measured rank."""

    def __init__(self, order: CoverageOrder, folder: Path) -> None:
        """Stop the inherited measurement and start a new one."""
        self._order, self._folder = order, folder
        self._coverage = self._begin()
        # A child that a test forks would write into the file of this rank.
        os.register_at_fork(after_in_child=self._begin_again)

    def _begin(self) -> Any:
        import coverage

        inherited = _current()
        if inherited is not None:
            # The parent saves it. Coverage has no public switch for the exit handler that a fork inherits (coverage 7):
            # https://github.com/nedbat/coveragepy/blob/master/coverage/control.py
            inherited._auto_save = False  # noqa: SLF001
            inherited.stop()
        # No suffix: the name of the file already has the pid.
        own = coverage.Coverage(config_file=f"{_DATA}{self._order.config}", data_suffix=False, messages=False)
        own.set_option("run:data_file", str(self._folder / f"{_FILE}.{os.getpid()}"))
        # A rank runs a few tests of the run. Modules that it has not measured may be measured by another one.
        own.set_option("run:disable_warnings", _OF_THE_WHOLE_RUN)
        own.set_option("run:patch", [])  # the user's patches are applied in the parent already
        own.start()
        return own

    def _begin_again(self) -> None:
        """Restart the measurement in a fork of this rank."""
        self._coverage = self._begin()

    def save(self) -> None:
        """Write the data measured so far."""
        self._coverage.save()

    @of_pytest(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Attribute the following lines to this test's setup."""
        self._switch(item, "setup")
        return (yield)

    @of_pytest(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Attribute the following lines to this test's call."""
        self._switch(item, "run")
        return (yield)

    @of_pytest(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Attribute the following lines to this test's teardown."""
        self._switch(item, "teardown")
        return (yield)

    def _switch(self, item: pytest.Item, phase: str) -> None:
        if self._order.by_test:
            self._coverage.switch_context(f"{item.nodeid}|{phase}")


def _current() -> Any:
    """Return the measurement of this process, if there is one."""
    coverage = sys.modules.get("coverage")
    return coverage.Coverage.current() if coverage is not None and hasattr(coverage, "Coverage") else None
