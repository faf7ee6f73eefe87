"""Hooks that adapt other plugins of pytest to runs with ranks."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from disttest.hookspecs import hookimpl, of_pytest

if TYPE_CHECKING:
    import pytest

NO_WORLDS_IN_WORKERS = (
    "pytest-xdist cannot run worlds: remove -n (or give -n 0); disttest runs worlds in parallel itself"
)
_OF_THE_CONTROLLER = (
    "pytest_forked",  # a rank is a process already, and its fork is no rank
    "rerunfailures",  # it would repeat a single rank, and the others would wait in vain
    "timeout",  # the world enforces the limit, even where no signal reaches Python
)
_NO_FILES = {
    "allure_report_dir": None,
    "cacheclear": False,  # it would remove what the controller has written into the cache meanwhile
    "clean_alluredir": False,
    "htmlpath": None,
    "json_report": False,
    "log_file": os.devnull,
    "report_log": None,
}
"""Options that write files before the end of a session, mapped to the value that disables writing."""
_OVERRULED = "disttest_overruled"


@of_pytest(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Leave the file of ``--debug`` to the controller: pytest opens it before it calls the hook below."""
    from disttest.runtime.controller.orders import collecting_order

    if early_config.known_args_namespace.debug and collecting_order(early_config) is not None:
        # The last one counts, and no option is read behind a `--`.
        args.insert(args.index("--") if "--" in args else len(args), f"--debug={os.devnull}")


@of_pytest(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """Change the options of other plugins before they read them."""
    from disttest.runtime.controller.orders import collecting_order, order_of

    is_rank = collecting_order(config) is not None
    if order_of(config).is_supervised or is_rank:
        _overrule_xdist(config)
    _need_no_failure_server(config)
    for name, value in _NO_FILES.items() if is_rank else ():
        # A plugin that is not installed has no such option.
        if hasattr(config.option, name):  # the controller writes the files of a run
            setattr(config.option, name, value)
    return (yield)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Report options of pytest-xdist that are ignored."""
    return [f"disttest: {note}" for note in _overruled(config)]


@of_pytest(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that needs ranks in a worker of pytest-xdist, which has none."""
    if not hasattr(item.config, "workerinput"):
        return
    import pytest

    from disttest.runtime.controller.expand import shape_of

    if shape_of(item) is not None:
        pytest.fail(NO_WORLDS_IN_WORKERS, pytrace=False)


@hookimpl
def disttest_leaves_tests(config: pytest.Config) -> bool | None:
    """Leave the tests to pytest-xdist if it distributes them, or if this is one of its workers."""
    # "dsession" exists in the process that distributes, "workerinput" in each worker.
    return config.pluginmanager.hasplugin("dsession") or hasattr(config, "workerinput") or None


@hookimpl
def disttest_worlds_begin(items: Sequence[pytest.Item], config: pytest.Config) -> Sequence[str]:
    """Note the functions of other plugins that are not available for these tests, and adapt pytest's own."""
    from disttest.plugins.pytest_plugins.old_folders import OldFolders

    config.pluginmanager.register(OldFolders(), "disttest-old-folders")
    if (stepwise := config.pluginmanager.getplugin("stepwiseplugin")) is not None:
        from disttest.plugins.pytest_plugins.stepwise import WorldsInSteps

        config.pluginmanager.register(WorldsInSteps(stepwise), "disttest-stepwise")
    measured = [item for item in items if "benchmark" in getattr(item, "fixturenames", ())]
    notes = _overruled(config)
    if measured and config.pluginmanager.hasplugin("benchmark"):
        from disttest.reports.text import count

        tests = count(len(measured), "test")
        why = "which lists tests of the pytest process only: each rank measures for itself"
        notes.append(f"pytest-benchmark: {tests} with a world not in its table, {why}")
    return notes


@hookimpl
def disttest_collecting_arguments(config: pytest.Config) -> Sequence[str]:
    """Pass on the seed that pytest-randomly has drawn."""
    seed = getattr(config.option, "randomly_seed", None)
    # Without it each process draws its own seed, and ranks would collect tests in different orders.
    return (f"--randomly-seed={seed}",) if isinstance(seed, int) else ()


@hookimpl
def disttest_retries(item: pytest.Item) -> int | None:
    """Return the retries requested from pytest-rerunfailures, by its option or its mark."""
    if not item.config.pluginmanager.hasplugin("rerunfailures"):
        return None
    import pytest_rerunfailures

    asked = pytest_rerunfailures.get_reruns_count(item)
    return None if asked is None else int(asked)


@hookimpl
def disttest_timeout(item: pytest.Item) -> float | None:
    """Return the limit that pytest-timeout was given for every test."""
    if not item.config.pluginmanager.hasplugin("timeout"):
        return None
    # pytest-timeout keeps the limit there, from its option, its ini value or its variable.
    return getattr(item.config, "_env_timeout", None) or None


@hookimpl
def disttest_process_configure(config: pytest.Config) -> None:
    """Remove plugins that would act on one rank without its world."""
    for name in _OF_THE_CONTROLLER:
        if config.pluginmanager.hasplugin(name):
            config.pluginmanager.unregister(name=name)


def _overrule_xdist(config: pytest.Config) -> None:
    """Stop pytest-xdist from distributing tests, wherever it was requested (command line, addopts, an ini file)."""
    asked = config.option
    processes = getattr(asked, "numprocesses", None)
    if not _distributes(asked):
        return
    # `-d` and `--tx` distribute tests without `-n`, too.
    asked.numprocesses, asked.distload, asked.dist, asked.tx = 0, False, "no", []
    word = f"-n {processes}" if processes else "distribution"
    setattr(asked, _OVERRULED, f"{word} of pytest-xdist is ignored: use slots (--slots)")


def _overruled(config: pytest.Config) -> list[str]:
    note = getattr(config.option, _OVERRULED, "")
    return [note] if note else []


def _need_no_failure_server(config: pytest.Config) -> None:
    """Keep pytest-rerunfailures from starting a thread for crashed workers if pytest-xdist has no workers.

    It starts the thread wherever pytest-xdist is installed, and a process with that thread cannot be forked.
    """
    plugin = config.pluginmanager.getplugin("rerunfailures")
    if plugin is not None and not _distributes(config.option) and not hasattr(config, "workerinput"):
        plugin.HAS_PYTEST_HANDLECRASHITEM = False


def _distributes(asked: Any) -> bool:
    wanted = (getattr(asked, name, None) for name in ("numprocesses", "distload", "tx"))
    return any(wanted)
