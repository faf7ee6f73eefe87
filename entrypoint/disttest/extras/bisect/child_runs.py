"""Runs of a test in a child ``disttest run``, with its own results directory, for commands that need many of them."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from disttest.errors import UsageError
from disttest.host.event_loop import catch
from disttest.limits import TICK_S
from disttest.options.environment import environment
from disttest.options.registry import RUN_OPTIONS

# -P keeps the working directory off sys.path. Otherwise a file of the project, such as signal.py, hides a
# module of the standard library (Python 3.11).
RUN = (sys.executable, "-P", "-m", "disttest", "run")
"""First words of the command line of a run."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def new_folder(path: Path) -> Path:
    """Make the folder, or ``PATH-2`` and so on if it exists: each search keeps the results of its runs.

    Raises:
        UsageError: it cannot be made.
    """
    # mkdir decides, not a look before it: two searches may start in one folder at the same time.
    for number in itertools.count(1):
        folder = path.with_name(f"{path.name}-{number}") if number > 1 else path
        try:
            folder.absolute().mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be made: {error.strerror}; choose another folder with --results"
            ) from error
        return folder.absolute()
    raise AssertionError


def cancel_in_order() -> None:
    """Let the signals that end this process raise :class:`KeyboardInterrupt`, so that it can clean up."""
    for number in _ENDING:
        catch(number, _cancel)


def _cancel(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def forwarded(flags: Mapping[str, str | None], own: Sequence[str]) -> list[str]:
    """Return the options of a run that its command line repeats.

    Args:
        flags: options by field.
        own: names of those that the search decides.
    """
    # One word for an option and its value, so that a value that begins with a dash stays a value.
    return [
        f"{option.flag}={flags[option.field]}"
        for option in RUN_OPTIONS
        if flags.get(option.field) and option.name not in own and not option.secret
    ]


def environ_of_runs(flags: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of the runs; secrets are in it, and on no command line."""
    # All users of the machine can read /proc/PID/cmdline. Only the owner can read /proc/PID/environ.
    secret = {option.variable: flags.get(option.field) for option in RUN_OPTIONS if option.secret}
    return {**environment(), **{name: value for name, value in secret.items() if value}}


def run_child(argv: Sequence[str], folder: Path, environ: Mapping[str, str], output: Path) -> int:
    """Run a program to its end and return its exit code; a signal that ends this process ends the program first.

    Args:
        argv: its command line.
        folder: its working directory.
        environ: its environment.
        output: file for its output and its errors.

    Raises:
        KeyboardInterrupt: such a signal arrived.
    """
    # An exception from a handler while Popen starts the program would leave the program running.
    noted: list[int] = []
    before = {number: catch(number, lambda got, _: noted.append(got)) for number in _ENDING}
    try:
        with output.open("wb") as file:
            # The output goes into a file, so a prompt would wait unseen. Without an input a breakpoint fails
            # immediately.
            child = subprocess.Popen(
                argv, cwd=folder, env=dict(environ), stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        while not noted:
            # A wait without a time limit would not end: the handler only notes the signal, and Python resumes
            # the wait (PEP 475).
            with suppress(subprocess.TimeoutExpired):
                return child.wait(TICK_S)
        # Ctrl-C reaches the whole process group, but a scheduler or kill signals this process alone.
        child.terminate()
        child.wait()
        raise KeyboardInterrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
