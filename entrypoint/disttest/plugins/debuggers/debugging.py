"""A debugger in one rank: it gets the terminal, while time stands still for its world.

Ranks open the terminal by its name, whichever process they were forked from, so that none has to hand it down.
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
from disttest.plugins.debuggers.option_rows import DEBUG_RANK, DEBUGPY
from disttest.runtime.messages.phases import PhaseCell
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.testing.hosting import RanksFailed

_STREAMS = (0, 1, 2)


def debug_process(spec: RankSpec, config: pytest.Config) -> None:
    """Debug this process where its test fails and at ``breakpoint()``, which otherwise names the option for that.

    Args:
        spec: of the process. The main process of a class is no rank: it is debugged only if any process that fails is.
        config: pytest's.
    """
    if config.pluginmanager.hasplugin("pdbinvoke"):  # pytest's own would ask a log
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
        from disttest.plugins.debuggers.debug_adapter import StopsWhereATestFails, await_debugger

        stop = await_debugger(spec.settings, hold)
        config.pluginmanager.register(StopsWhereATestFails(stop), "disttest-debugger")


def _hold_nothing(_on: bool) -> None:
    """Nothing is debugged."""


def awaits_debugger(settings: WorldSettings, rank: int) -> bool:
    """Whether a rank waits for a debugger to connect."""
    return DEBUGPY.of(settings) is not None and rank == (DEBUG_RANK.of(settings) or 0)


def debug_at_breakpoints(spec: RankSpec, rank: int, hold: Callable[[bool], None]) -> RankDebugger | None:
    """Stop at ``breakpoint()`` if this rank may be debugged. Otherwise it has no effect, or names the option for that.

    Args:
        spec: of this process, or of the one that has started it.
        rank: this one.
        hold: called with whether the limits of the world stand still.
    """
    terminal = spec.settled.get("debuggers", {}).get("terminal", "")
    may_debug = terminal and DEBUG_RANK.of(spec.settings) in (None, rank)
    debugger = RankDebugger(Terminal(terminal, hold), rank) if may_debug else None
    if debugger is not None:
        sys.breakpointhook = debugger.stop_here
    else:
        sys.breakpointhook = _pass_by if spec.settings.is_debugged else _refuse
    pdb.set_trace = sys.breakpointhook
    return debugger


def _pass_by(*_arguments: Any, **_named: Any) -> None:
    """Another rank is debugged."""


def _refuse(*_arguments: Any, **_named: Any) -> NoReturn:
    raise RuntimeError(
        "breakpoint() in a rank, whose output is a log: run the test at a terminal with --debug-rank K (or with --pdb), "
        "or with --debugpy PORT"
    )


class Terminal:
    """The terminal of the user, which one rank has at a time."""

    def __init__(self, device: str, hold: Callable[[bool], None]) -> None:
        self._device = device
        self._hold = hold
        self._fd: int | None = None
        self._logs: tuple[int, ...] = ()
        self._stdin: Any = None

    def wait(self, on: bool) -> None:
        """The world is to stand still from now on (or not), whoever has the terminal."""
        self._hold(on)

    def take(self) -> None:
        """Read from the terminal and write to it, as soon as no other rank does."""
        if self._fd is not None:
            return
        self._hold(True)
        self._fd = os.open(self._device, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        flush_output()
        self._logs = tuple(os.dup(fd) for fd in _STREAMS)
        for fd in _STREAMS:
            os.dup2(self._fd, fd)
        self._stdin, sys.stdin = sys.stdin, open(0, closefd=False)  # noqa: SIM115 - lives as long as the prompt

    def release(self) -> None:
        """Read and write as before; the world goes on."""
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
    """Takes the terminal when it stops, and keeps it until the test is to run on."""

    def __init__(self, terminal: Terminal, name: str) -> None:
        super().__init__(nosigint=True)  # a handler that it sets would be the test's leak
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
    """Debugs one rank at the terminal: at ``breakpoint()``, and where its test has failed."""

    def __init__(self, terminal: Terminal, rank: int) -> None:
        self.terminal = terminal
        self._name = rank_name(rank)

    def stop_here(self, *_arguments: Any, **_named: Any) -> None:
        """What ``breakpoint()`` does: stop in the line that follows."""
        _Debugger(self.terminal, self._name).set_trace(sys._getframe(1))  # noqa: SLF001

    def look_at(
        self,
        what: str,
        traceback: TracebackType | None,
        tell: Callable[[TerminalWriter], None],
        config: pytest.Config,
    ) -> None:
        """The test has failed in this rank: look at where.

        Args:
            what: has failed.
            traceback: of what was raised.
            tell: writes what was raised.
            config: pytest's.
        """
        self.terminal.take()
        try:
            writer = create_terminal_writer(config, sys.stdout)
            writer.sep(">", f"{self._name} failed: {what}")
            tell(writer)
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
        """A phase is over, and stepping through it; a failure stops the world before it is told, since that ends it."""
        self._debugger.terminal.release()
        report = yield
        self._debugger.terminal.wait(_is_own(call) and check_interactive_exception(call, report))
        return report

    def pytest_exception_interact(
        self, call: pytest.CallInfo[None], report: pytest.TestReport, node: pytest.Item
    ) -> None:
        """The test has failed in this rank."""
        if _is_own(call):
            assert call.excinfo is not None
            self._debugger.look_at(report.nodeid, call.excinfo.tb, report.toterminal, node.config)


def _is_own(call: pytest.CallInfo[None]) -> bool:
    """Whether it was raised in this process; what its ranks have raised was looked at there."""
    return call.excinfo is None or not call.excinfo.errisinstance(RanksFailed)
