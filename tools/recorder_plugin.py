"""A pytest plugin for :mod:`foreign` and :mod:`foreign_projects`: writes each verdict down as it is known.

Tests are put into a shuffled order if ``FOREIGN_SEED`` is set.

A file of JSON lines, not JUnit: what was known stays known when a run is cut short at its limit.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

_GRAVITY = ("passed", "skipped", "failed")
"""The gravest phase of a test is its verdict."""


def pytest_configure(config: pytest.Config) -> None:
    """Record, unless this process is a rank, whose reports are not verdicts."""
    if not _is_rank(config):
        config.pluginmanager.register(_Recorder(Path(os.environ["FOREIGN_RECORD"])), "foreign-recorder")


def _is_rank(config: pytest.Config) -> bool:
    if config.getoption("disttest_order", None) is None:  # also without disttest, which need not be installed
        return False
    from disttest.runtime.controller.orders import collecting_order

    return collecting_order(config) is not None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same order for the same seed, whatever collected them."""
    if "FOREIGN_SEED" not in os.environ:
        return
    items.sort(key=lambda item: item.nodeid)
    random.Random(os.environ["FOREIGN_SEED"]).shuffle(items)


class _Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = os.getpid()
        self._phases: dict[str, list[pytest.TestReport]] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(broken=report.nodeid, message=_last_line(report.longreprtext))
        elif report.skipped:
            self._write(skipped_file=report.nodeid, message=_last_line(str(report.longrepr)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write(collected=[_name(item.nodeid) for item in session.items])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._phases.setdefault(report.nodeid, []).append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        reports = [r for r in self._phases.pop(nodeid, ()) if r.outcome in _GRAVITY]
        if not reports:
            return
        worst = max(reports, key=lambda report: _GRAVITY.index(report.outcome))
        self._write(
            test=_name(nodeid),
            file=nodeid.partition("::")[0],
            outcome="xfailed" if hasattr(worst, "wasxfail") and worst.skipped else worst.outcome,
            seconds=sum(report.duration for report in reports),
            message=_message(worst),
        )

    def _write(self, **fields: object) -> None:
        if os.getpid() == self._pid:
            with self._path.open("a") as file:
                file.write(json.dumps(fields) + "\n")


def _name(nodeid: str) -> str:
    """Class and method: what the two harnesses agree on."""
    return nodeid.partition("::")[2]


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return str(crash.message) if crash else _first_line(report.longreprtext)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _last_line(text: str) -> str:
    return _first_line("\n".join(reversed(text.splitlines())))
