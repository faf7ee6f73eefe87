"""A rank of SPMD mode: it has collected under torchrun's environment, and the suite's own harness controls it.

No group is created for it and no state is restored between its tests: process groups, session fixtures and modules
live as long as its world. The hooks of a suite's conftest files run in each rank, and not in the controller.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from disttest.host.process import flush_output, leave
from disttest.options.environment import environment
from disttest.plugin_manager import plugin_manager
from disttest.runtime.messages.protocol import Channel, RunTest, TestDone
from disttest.runtime.rank import flight, watchdog
from disttest.runtime.rank.bridge import OF_REPORTS, remove_hooks
from disttest.runtime.rank.child import redirect_output, register_stacks, use_cuda_freely
from disttest.runtime.rank.own_store import connect_to_own_store, follow_own_port
from disttest.runtime.rank.rank import (
    Protocol,
    run_with_plugins,
    save,
    serve_orders,
    set_up_child,
    shared_fixtures,
)
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.rank.rank_test import Rank, RankTest
from disttest.runtime.rank.waits import watch_waits
from disttest.testing.world import provide_world

_FINISH = "pytest_sessionfinish"


def is_conftest(plugin: object) -> bool:
    """Return whether a plugin is the module of a conftest file."""
    return isinstance(plugin, types.ModuleType) and Path(plugin.__file__ or "").name == "conftest.py"


def leave_hooks_to_ranks(config: pytest.Config) -> None:
    """Keep the controller from running the conftest hooks that each rank runs."""
    remove_hooks(config, (*OF_REPORTS, _FINISH), of=is_conftest)


# A world whose ranks collect, not torchrun: verdicts, logs, limits and reports are those of all worlds.
# docs/decisions/0015-spmd-is-a-world.md
class SuiteSession:
    """The plugin of one rank that counts its failed tests and ends its session."""

    def __init__(self, session: pytest.Session, failed_before: int) -> None:
        """Create the plugin.

        Args:
            session: pytest's session in this rank.
            failed_before: number of tests that failed in this rank's predecessors: a failure is followed by a new
                world.
        """
        self._session = session
        # Hooks of conftest files read it, mostly in `pytest_sessionfinish`.
        session.testsfailed = failed_before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a failed test as pytest does."""
        if report.failed and not hasattr(report, "wasxfail"):
            self._session.testsfailed += 1

    @property
    def has_hooks(self) -> bool:
        """Whether a conftest file has a ``pytest_sessionfinish`` hook."""
        hooks = getattr(self._session.config.hook, _FINISH).get_hookimpls()
        return any(is_conftest(hook.plugin) for hook in hooks)

    def finish(self) -> int:
        """Call the ``pytest_sessionfinish`` hooks of conftest files; return the exit code that they set, or 0."""
        manager = self._session.config.pluginmanager
        others = [plugin for plugin in manager.get_plugins() if not is_conftest(plugin)]
        status = pytest.ExitCode.TESTS_FAILED if self._session.testsfailed else pytest.ExitCode.OK
        self._session.exitstatus = status
        manager.subset_hook_caller(_FINISH, others)(session=self._session, exitstatus=status)
        # The controller knows of failed tests, and not of a check at the end of this session.
        return int(self._session.exitstatus) if self._session.exitstatus != status else 0


def serve_spmd(
    spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]
) -> None:
    """Run tests until the world ends this process or is gone. Never returns."""
    channel = set_up_child(spec, channel, session.config)
    use_cuda_freely()
    flight.answer_questions(spec.questions, spec.rank)
    watch_waits(spec.watches, spec.place)
    # RANK is set here, so the usual message would name torchrun, which the user has not called.
    provide_world(_refuse_world, _refuse_world)
    follow_own_port(spec.master_port)
    connect_to_own_store(spec)

    rank = Rank(spec, session.config, channel)
    plugins = plugin_manager()
    plugins.call("disttest_rank_configure", rank=rank)
    plugins.add_core(Protocol(items), "protocol")

    def run(order: RunTest) -> None:
        redirect_output(session.config, Path(order.log))
        register_stacks(spec.stacks)
        flight.note_start()
        test = RankTest(rank, order, items[order.nodeid], seed=spec.settings.seed)
        plugin_error = run_with_plugins(test)
        flush_output()
        plugin_error = plugin_error or save()
        shares = suite.has_hooks or bool(shared_fixtures(session))
        leaks = watchdog.stop_leftover()
        channel.send(TestDone(leaks=leaks, seen=test.reported, plugin_error=plugin_error, shares=shares))

    suite = SuiteSession(session, spec.failed_before)
    session.config.pluginmanager.register(suite, "disttest-suite-session")
    code = serve_orders(
        spec,
        channel,
        session,
        run,
        silences=lambda plugin: not is_conftest(plugin) and plugin is not suite,
        # After the tear-down of the last fixtures, as in pytest, and in each rank, as under torchrun.
        finish=suite.finish,
    )
    save()
    leave(code)


def _refuse_world() -> NoReturn:
    raise LookupError(
        "no world here: with --spmd each test makes its own process group; "
        "run tests that use the fixture world without --spmd"
    )


@pytest.fixture(scope="session")
def worker_id() -> str:
    """Return the name of the worker of pytest-xdist that is this rank, for suites that use workers as ranks."""
    return f"gw{environment()['RANK']}"
