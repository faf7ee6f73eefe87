"""A debugger in one rank, which gets the terminal while the limits of its world are suspended.

No pytest runs in a rank that a class has started: there the debugger receives the test's exception.
Ranks open the terminal by its name, so no parent process must pass it down.
"""

from __future__ import annotations

import bdb
import fcntl
import os
import pdb
import sys
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, NoReturn

import pytest
from _pytest._io import TerminalWriter
from _pytest.config import create_terminal_writer
from _pytest.runner import check_interactive_exception

from disttest.host.process import flush_output
from disttest.model import MAIN_RANK, WorldKind, rank_name
from disttest.options.run import WorldSettings
from disttest.plugins.debuggers.debug_adapter import StopsWhereATestFails, await_debugger
from disttest.plugins.debuggers.hooks import DEBUG_RANK, DEBUGPY
from disttest.runtime.messages.phases import PhaseCell
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.rank.rank_test import PostMortem, Report
from disttest.testing.hosting import RanksFailed

_STREAMS = (0, 1, 2)


def debug_process(spec: RankSpec, config: pytest.Config) -> None:
    """Debug this process at its test's failure and at ``breakpoint()``, which otherwise names the option.

    Args:
        spec: description of the process. The main process of a class is not a rank: it is debugged only with ``--pdb``.
        config: pytest's configuration.
    """
    if config.pluginmanager.hasplugin("pdbinvoke"):  # pytest's own debugger would read from a log
        config.pluginmanager.unregister(name="pdbinvoke")
    rank = MAIN_RANK if spec.kind is WorldKind.MAIN else spec.rank
    hold = PhaseCell(spec.phases, spec.place).hold if spec.settings.is_debugged else _hold_nothing
    debugger = debug_at_breakpoints(spec, rank, hold)
    if debugger is not None:
        config.pluginmanager.register(_Debugging(debugger), "disttest-debugging")
    if (
        spec.kind is WorldKind.RANKS
        and not spec.settings.ranks_collect
        and awaits_debugger(spec.settings, rank)
    ):
        stop = await_debugger(spec.settings, hold)
        config.pluginmanager.register(StopsWhereATestFails(stop), "disttest-debugger")


def _hold_nothing(_on: bool) -> None:
    """Do nothing: no debugger is used."""


def awaits_debugger(settings: WorldSettings, rank: int) -> bool:
    """Return whether a rank waits for a debugger to connect."""
    return DEBUGPY.of(settings) is not None and rank == (DEBUG_RANK.of(settings) or 0)


def debug_at_breakpoints(spec: RankSpec, rank: int, hold: Callable[[bool], None]) -> RankDebugger | None:
    """Stop at ``breakpoint()`` if this rank may be debugged. Otherwise it has no effect, or names the option.

    Args:
        spec: description of this process, or of the one that has started it.
        rank: number of this rank.
        hold: called with whether the limits of the world are suspended.
    """
    terminal = spec.settled.get("debuggers", {}).get("terminal", "")
    may_debug = terminal and DEBUG_RANK.of(spec.settings) in (None, rank)
    debugger = RankDebugger(Terminal(terminal, hold), rank) if may_debug else None
    if debugger is not None:
        sys.breakpointhook = debugger.stop_here
    else:
        sys.breakpointhook = _pass_by if spec.settings.is_debugged else _refuse
    # Unlike breakpoint(), pdb.set_trace() does not ask sys.breakpointhook (Python 3.11 to 3.13).
    pdb.set_trace = sys.breakpointhook
    return debugger


def _pass_by(*_arguments: Any, **_named: Any) -> None:
    """Do nothing: another rank is debugged."""


def _refuse(*_arguments: Any, **_named: Any) -> NoReturn:
    raise RuntimeError(
        "breakpoint() in a rank needs a terminal, but ranks write to logs: "
        "run the test at a terminal with --debug-rank K (or with --pdb), or with --debugpy PORT"
    )


class Terminal:
    """The user's terminal, which one rank holds at a time."""

    def __init__(self, device: str, hold: Callable[[bool], None]) -> None:
        self._device = device
        self._hold = hold
        self._fd: int | None = None
        self._logs: tuple[int, ...] = ()
        self._stdin: Any = None

    def wait(self, on: bool) -> None:
        """Suspend or resume the limits of the world, whichever rank holds the terminal."""
        self._hold(on)

    def take(self) -> None:
        """Read from and write to the terminal, as soon as no other rank does."""
        if self._fd is not None:
            return
        self._hold(True)
        # By name, so no process above has to keep it open. O_NOCTTY: it stays the terminal of the user's
        # shell.
        self._fd = os.open(self._device, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        # The limits stop before the lock: they must not run while another rank has the terminal.
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        flush_output()
        # By descriptor, because output of C++ and of children does not pass through sys.stdout.
        self._logs = tuple(os.dup(fd) for fd in _STREAMS)
        for fd in _STREAMS:
            os.dup2(self._fd, fd)
        # open as long as the prompt
        self._stdin, sys.stdin = sys.stdin, open(0, closefd=False)  # noqa: SIM115

    def release(self) -> None:
        """Restore the streams and resume the limits."""
        if self._fd is None:
            self._hold(False)
            return
        flush_output()
        sys.stdin = self._stdin
        for fd, log in zip(_STREAMS, self._logs, strict=True):
            os.dup2(log, fd, inheritable=fd != 0)
            os.close(log)
        os.close(self._fd)
        self._fd = None
        self._hold(False)


class _Debugger(pdb.Pdb):
    """A pdb that takes the terminal when it stops, and keeps it until the test continues."""

    def __init__(self, terminal: Terminal, name: str) -> None:
        super().__init__(nosigint=True)  # its signal handler would count as a leak of the test
        self.prompt = f"({name}) "
        self._terminal = terminal

    def interaction(self, *where: Any) -> None:
        self._terminal.take()
        super().interaction(*where)

    def set_continue(self) -> None:
        self._terminal.release()
        super().set_continue()

    def set_quit(self) -> None:
        self._terminal.release()
        super().set_quit()


class RankDebugger:
    """The debugger of one rank at the terminal: at ``breakpoint()``, and where its test has failed."""

    def __init__(self, terminal: Terminal, rank: int) -> None:
        self.terminal = terminal
        self._name = rank_name(rank)

    def stop_here(self, *_arguments: Any, **_named: Any) -> None:
        """Stop in the next line; installed as ``breakpoint()``."""
        # Documented; bdb.set_trace finds the caller in the same way (Python 3.11 to 3.13).
        _Debugger(self.terminal, self._name).set_trace(sys._getframe(1))  # noqa: SLF001

    def look_at(
        self,
        what: str,
        traceback: TracebackType | None,
        write: Callable[[TerminalWriter], None],
        config: pytest.Config,
    ) -> None:
        """Inspect a failure of the test in this rank.

        Args:
            what: name of the failed test.
            traceback: traceback of the exception.
            write: writes the exception.
            config: pytest's configuration.
        """
        self.terminal.take()
        try:
            writer = create_terminal_writer(config, sys.stdout)
            writer.sep(">", f"{self._name} failed: {what}")
            write(writer)
            debugger = _Debugger(self.terminal, self._name)
            debugger.reset()
            debugger.interaction(None, traceback)
        except bdb.BdbQuit:
            pass
        finally:
            self.terminal.release()


class _Debugging:
    """The pytest plugin of a rank that may be debugged."""

    def __init__(self, debugger: RankDebugger) -> None:
        self._debugger = debugger

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """End stepping after a phase."""
        # A failure suspends the limits before it is reported, because the report ends the world.
        self._debugger.terminal.release()
        report = yield
        self._debugger.terminal.wait(_is_own(call) and check_interactive_exception(call, report))
        return report

    def pytest_exception_interact(
        self, call: pytest.CallInfo[None], report: pytest.TestReport, node: pytest.Item
    ) -> None:
        """Inspect a failure of the test in this rank."""
        if _is_own(call):
            assert call.excinfo is not None
            self._debugger.look_at(report.nodeid, call.excinfo.tb, report.toterminal, node.config)


def _is_own(call: pytest.CallInfo[None]) -> bool:
    """Return whether this process raised the exception. Exceptions of its ranks were inspected there."""
    return call.excinfo is None or not call.excinfo.errisinstance(RanksFailed)


def debug_started_rank(
    rank: int, spec: RankSpec, config: pytest.Config, hold: Callable[[bool], None]
) -> PostMortem | None:
    """Debug this rank at ``breakpoint()``; return the function that debugs it at a failure.

    Args:
        rank: number of this rank.
        spec: description of the process that has started it.
        config: pytest's configuration.
        hold: called with whether the limits of the world are suspended.
    """
    debugger = debug_at_breakpoints(spec, rank, hold)
    if awaits_debugger(spec.settings, rank):
        hold(True)  # its test runs already
        stop = await_debugger(spec.settings, hold)

        def stop_there(error: BaseException, report: Report) -> None:
            report()
            stop(error)

        return stop_there
    if debugger is None:
        return None

    def look_at(error: BaseException, report: Report) -> None:
        # `q` at the prompt of a breakpoint ends the test by BdbQuit, which its user does not want to
        # inspect.
        is_failure = not isinstance(error, bdb.BdbQuit)
        # The limits stop before the report: the world would end the other ranks soon after it.
        debugger.terminal.wait(is_failure)
        message, text = report()
        if is_failure:
            debugger.look_at(message, error.__traceback__, lambda writer: writer.write(text), config)

    return look_at
