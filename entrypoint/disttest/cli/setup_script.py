"""The user's setup script, run where the tests run: as the same user, in the same folder and environment."""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from pathlib import Path
from typing import NoReturn

import click

from disttest.cli.words import warn_by_plugins
from disttest.clock import monotonic
from disttest.errors import SetupError, UsageError
from disttest.host.descendants import kill_descendants
from disttest.host.event_loop import NotedSignals, wait_any
from disttest.host.lines import Lines
from disttest.host.process import Child, Exit, adopt_orphans, spawn_child
from disttest.limits import SETUP_S
from disttest.options.environment import environment
from disttest.outgoing import outgoing

SHOWN_LINES = 12
"""Number of lines of the script's output in the message about its failure."""


def run_setup(script: Path, *, signals: NotedSignals | None = None, deadline_s: float = 0.0) -> int | None:
    """Run the script with bash to its end, and show its output immediately.

    Args:
        script: the file; it need not be executable.
        signals: signals that cancel the run; without them, signals interrupt as usual.
        deadline_s: time limit of the whole run; 0: none.

    Returns:
        Number of the signal that cancelled it and ended the script; None otherwise.

    Raises:
        UsageError: there is no such file.
        SetupError: it failed, or took too long.
    """
    if not script.is_file():
        raise UsageError(f"--setup {script}: no such file in {Path.cwd()}")
    # Processes that the script leaves running end with the run.
    adopt_orphans()
    reader, writer = os.pipe()
    # `_show` reads until the pipe is empty and must not wait for more.
    os.set_blocking(reader, False)
    try:
        child = spawn_child(["bash", str(script)], stdout=writer)
    finally:
        # With a writer open in this process, the pipe would never end.
        os.close(writer)
    try:
        return _Setup(script, child, reader).follow(signals, min(SETUP_S, deadline_s or math.inf))
    finally:
        os.close(reader)


class _Setup:
    """The running script."""

    def __init__(self, script: Path, child: Child, reader: int) -> None:
        self._script = script
        self._child = child
        self._reader = reader
        self._lines = Lines()
        self._writes = True
        self._tail: deque[str] = deque(maxlen=SHOWN_LINES)

    def follow(self, signals: NotedSignals | None, limit_s: float) -> int | None:
        """Wait for its end. A signal, an interrupt and the limit kill it and all processes that it started."""
        until_s = monotonic() + limit_s
        try:
            while (ended := self._child.poll()) is None:
                if monotonic() >= until_s:
                    self._fail(f"did not end within {limit_s:.0f} s")
                # A pipe at its end is always readable, and the loop would spin.
                wait_any(self._child, signals, self._reader if self._writes else None, until_s=until_s)
                self._show()
                if signals and (signum := signals.first()) is not None:
                    return signum
        finally:
            if self._child.poll() is None:
                kill_descendants()
        # The script may have written between the last look and its end.
        self._show()
        self._judge(ended)
        return None

    def _show(self) -> None:
        """Print the output so far."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reader, 1 << 16):
                for line in self._lines.feed(data):
                    self._print(line)
            self._writes = False

    def _print(self, line: bytes) -> None:
        # The command itself gets no further than the shield around this output, in which the value would be readable.
        outgoing.learn(line)
        text = outgoing.text(line.decode(errors="replace"))
        self._tail.append(text)
        click.echo(text, err=True)

    def _judge(self, ended: Exit) -> None:
        if self._lines.rest:
            self._print(bytes(self._lines.rest))
        if ended.code != 0:
            self._fail(f"ended with {ended}")

    def _fail(self, what: str) -> NoReturn:
        error = SetupError(f"--setup {self._script} {what}, so no test was run; its last lines:", self._tail)
        warn_by_plugins(
            "disttest_run_finished", run=None, results=None, exit_code=error.exit_code, environ=environment()
        )
        raise error
