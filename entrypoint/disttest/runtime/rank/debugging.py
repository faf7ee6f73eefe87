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
from typing import Any, NoReturn

import pytest
from _pytest.config import create_terminal_writer
from _pytest.runner import check_interactive_exception

from disttest.host.process import flush_output
from disttest.options.run import WorldSettings

_STREAMS = (0, 1, 2)


def debug_in_rank(
    settings: WorldSettings, rank: int, config: pytest.Config, hold: Callable[[bool], None]
) -> None:
    """Have this rank debugged where it fails and at ``breakpoint()``, or have it say how that is asked for.

    Args:
        settings: of the run.
        rank: this one.
        config: pytest's.
        hold: told when the world is to stand still, and when it may go on.
    """
    if config.pluginmanager.hasplugin("pdbinvoke"):  # pytest's own would ask a log
        config.pluginmanager.unregister(name="pdbinvoke")
    if settings.may_debug(rank):
        debugging = _Debugging(_Terminal(settings.terminal, hold), rank)
        config.pluginmanager.register(debugging, "disttest-debugging")
        sys.breakpointhook = debugging.stop_here
    else:
        sys.breakpointhook = _pass_by if settings.is_debugged else _refuse
    pdb.set_trace = sys.breakpointhook


def _pass_by(*_arguments: Any, **_named: Any) -> None:
    """Another rank is debugged."""


def _refuse(*_arguments: Any, **_named: Any) -> NoReturn:
    raise RuntimeError(
        "breakpoint() in a rank, whose output is a log: run the test at a terminal with --debug-rank K (or with --pdb), "
        "or with --debugpy PORT"
    )


class _Terminal:
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

    def __init__(self, terminal: _Terminal, rank: int) -> None:
        super().__init__(nosigint=True)  # a handler that it sets would be the test's leak
        self.prompt = f"(rank {rank}) "
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


class _Debugging:
    """The pytest plugin of a rank that may be debugged."""

    def __init__(self, terminal: _Terminal, rank: int) -> None:
        self._terminal = terminal
        self._rank = rank

    def stop_here(self, *_arguments: Any, **_named: Any) -> None:
        """What ``breakpoint()`` does: stop in the line that follows."""
        _Debugger(self._terminal, self._rank).set_trace(sys._getframe(1))  # noqa: SLF001

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """A phase is over, and stepping through it; a failure stops the world before it is told, since that ends it."""
        self._terminal.release()
        report = yield
        self._terminal.wait(check_interactive_exception(call, report))
        return report

    def pytest_exception_interact(
        self, call: pytest.CallInfo[None], report: pytest.TestReport, node: pytest.Item
    ) -> None:
        """The test has failed in this rank: look at where."""
        assert call.excinfo is not None
        self._terminal.take()
        try:
            writer = create_terminal_writer(node.config, sys.stdout)
            writer.sep(">", f"rank {self._rank} failed: {report.nodeid}")
            report.toterminal(writer)
            debugger = _Debugger(self._terminal, self._rank)
            debugger.reset()
            debugger.interaction(None, call.excinfo.tb)
        except bdb.BdbQuit:
            pass
        finally:
            self._terminal.release()
