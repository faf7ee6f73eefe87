"""Plugins of others in the controller: what they were asked that disttest does, and what they have settled for all ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pytest

from disttest.runtime.hosting.scripts import for_other_processes
from disttest.runtime.messages.settled import Settled
from disttest.runtime.rank.measured import coverage_of_controller

NO_WORLDS_IN_WORKERS = (
    "pytest-xdist cannot run worlds: leave -n out (or give -n 0); disttest runs them side by side itself"
)
_OVERRULED = pytest.StashKey[list[str]]()


def overrule_xdist(config: pytest.Config) -> None:
    """Have pytest-xdist distribute nothing, wherever it was asked to (command line, addopts, an ini file)."""
    asked = config.option
    processes = getattr(asked, "numprocesses", None)
    if not _distributes(asked):
        return
    asked.numprocesses, asked.distload, asked.dist, asked.tx = 0, False, "no", []
    word = f"-n {processes}" if processes else "distribution"
    config.stash[_OVERRULED] = [f"{word} of pytest-xdist is ignored: slots do that work (--slots)"]


def need_no_failure_server(config: pytest.Config) -> None:
    """Where nothing is distributed, pytest-rerunfailures needs no thread to hear of crashed workers of pytest-xdist.

    It starts one wherever pytest-xdist is installed, and a process with a thread cannot be forked.
    """
    plugin = config.pluginmanager.getplugin("rerunfailures")
    if plugin is not None and not _distributes(config.option) and not hasattr(config, "workerinput"):
        plugin.HAS_PYTEST_HANDLECRASHITEM = False


def leave_hypothesis_unused(config: pytest.Config) -> None:
    """Where no test has used hypothesis, have its plugin sum up nothing: it would import all of it to do so, 0.1 s."""
    plugin = config.pluginmanager.getplugin("hypothesispytest")
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if plugin is None or reporter is None or "hypothesis" in sys.modules:
        return
    reports = (report for reports in reporter.stats.values() for report in reports)
    told = (name for report in reports for name in getattr(report, "__dict__", ()))
    summary = config.hook.pytest_terminal_summary
    sums_up = any(implementation.plugin is plugin for implementation in summary.get_hookimpls())
    if sums_up and not any(name.startswith("_hypothesis") for name in told):
        summary._remove_plugin(plugin)  # noqa: SLF001  # pluggy has no public way per hook


def _distributes(asked: Any) -> bool:
    wanted = (getattr(asked, name, None) for name in ("numprocesses", "distload", "tx"))
    return any(wanted)


def overruled(config: pytest.Config) -> list[str]:
    """What was asked of pytest-xdist and is not done, in a line."""
    return [*config.stash[_OVERRULED]] if _OVERRULED in config.stash else []


def settled_by_plugins(config: pytest.Config) -> Settled:
    """What ranks have to share with this process."""
    return Settled(coverage=coverage_of_controller(config))


def notes_on_plugins(items: Iterable[pytest.Item]) -> list[str]:
    """What plugins of others do not do for tests with a world, for a run with these."""
    measured = [item for item in items if "benchmark" in getattr(item, "fixturenames", ())]
    if not measured or not measured[0].config.pluginmanager.hasplugin("benchmark"):
        return []
    count = "1 test" if len(measured) == 1 else f"{len(measured)} tests"
    where = "which it makes of what ran in this process: the ranks measured each for itself"
    return [f"pytest-benchmark: {count} with a world not in its table, {where}"]


def arguments_for_ranks(config: pytest.Config) -> tuple[str, ...]:
    """What processes that collect for ranks are told: the arguments of this one, and what its plugins have settled since."""
    arguments = [*for_other_processes(config.invocation_params.args)]
    if config.pluginmanager.hasplugin("pytest_cov"):
        arguments.append("--no-cov")  # it would erase the data of this process as it starts
    if isinstance(seed := getattr(config.option, "randomly_seed", None), int):
        arguments.append(f"--randomly-seed={seed}")
    return tuple(arguments)


def retries_of(item: pytest.Item) -> int | None:
    """How often pytest-rerunfailures was asked to repeat a test, by its option or its mark; None: nobody asked."""
    if not item.config.pluginmanager.hasplugin("rerunfailures"):
        return None
    import pytest_rerunfailures

    asked = pytest_rerunfailures.get_reruns_count(item)
    return None if asked is None else int(asked)


def limit_of(config: pytest.Config) -> float | None:
    """The limit in seconds that pytest-timeout was given for every test; None: it was given none, or is not there."""
    if not config.pluginmanager.hasplugin("timeout"):
        return None
    return getattr(config, "_env_timeout", None) or None
