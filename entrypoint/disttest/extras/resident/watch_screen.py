"""Screen of ``disttest watch``: show the running or last run, and handle the keys.

Saved files are found by their times, which works on every file system and in containers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from disttest.clock import monotonic, sleep
from disttest.descriptors import new_streams
from disttest.errors import UsageError
from disttest.extras.resident.handover import run_by_parent
from disttest.extras.resident.limits import SAVED_POLL_S
from disttest.extras.resident.touched import find_touched, read_names
from disttest.host.event_loop import wait_any
from disttest.host.process import Child, die_with_parent, end_all, fork_child, leave, outlive
from disttest.limits import SUPERVISOR_CANCEL_S, TICK_S
from disttest.options.environment import environment
from disttest.reports.text import count, duration, one_line
from disttest.results.fold import RunResult, TestOutcome, fold
from disttest.results.journal import FILE_NAME, read_events
from disttest.results.repeat import seen_from_start, target_of

# inotify does not report writes of another machine or of a container's host. A scan of 1,000 files takes
# milliseconds.
_CONFIGURATION = frozenset({"pyproject.toml", "pytest.ini", "tox.ini", "setup.cfg"})
_NOT_SOURCES = frozenset({"__pycache__", "node_modules", "build", "dist", "site-packages"})
_SHARE = 20
"""Pause between two scans as a multiple of a scan's duration: at most 5 % of a processor, even in a large folder."""


# docs/decisions/0037-saved-files-are-scanned.md
class SavedFiles:
    """The Python files and settings below a folder, with paths relative to it."""

    def __init__(self, folder: Path, *, interval_s: float) -> None:
        """Scan for the first time.

        Args:
            folder: folder to scan with all folders below it, except hidden ones and virtual environments.
            interval_s: time between two scans; more in a large folder.
        """
        self._folder = folder
        self._least_s = interval_s
        self._seen: dict[Path, tuple[int, int]] = {}
        self.names: dict[Path, frozenset[str]] = {}
        self.interval_s = interval_s
        self.scan()

    def scan(self) -> tuple[Path, ...]:
        """Return the files that are new, changed or gone since the last scan."""
        began_s = time.monotonic()
        now = dict(_files(self._folder))
        saved = tuple(
            sorted(path for path in now.keys() | self._seen.keys() if now.get(path) != self._seen.get(path))
        )
        self.interval_s = max(self._least_s, _SHARE * (time.monotonic() - began_s))
        self._seen = now
        for path in saved:
            if path in now and path.suffix == ".py":
                self.names[path] = read_names(self._folder / path)
            else:
                self.names.pop(path, None)
        return saved


def _files(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield path below the folder, time and size of each relevant file."""
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_left_out(where, name)]
        for name in files:
            if name.endswith(".py") or name in _CONFIGURATION:
                try:
                    facts = os.stat(f"{where}/{name}")  # noqa: PTH116 - for all files, ten times a second
                except OSError:  # being replaced right now
                    continue
                yield Path(where, name).relative_to(folder), (facts.st_mtime_ns, facts.st_size)


def _is_left_out(where: str, name: str) -> bool:
    return name.startswith(".") or name in _NOT_SOURCES or Path(where, name, "pyvenv.cfg").exists()


_KEYS = "enter: all   f: failed   r: a rank's log   q: quit"
_MOST_KEYS = 64
"""Keys that are read at the same time."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_FAILED = "✗"
_CLEAR = "\x1b[2J\x1b[H"


def watch(
    targets: Sequence[str], pytest_args: Sequence[str], run: Callable[[Sequence[str]], NoReturn]
) -> None:
    """Run until the user quits.

    Args:
        targets: paths of tests.
        pytest_args: further arguments for pytest.
        run: runs the command with these arguments in this process.

    Raises:
        UsageError: there is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("disttest watch needs a terminal; use disttest run --resident in scripts")
    with (
        _ended_in_order(),
        tempfile.TemporaryDirectory(prefix="disttest-watch-", ignore_cleanup_errors=True) as folder,
        _removed_after_kill(Path(folder)),
        _key_by_key(),
    ):
        _Watch(targets, pytest_args, Path(folder), run).stay()


class _Known(NamedTuple):
    """Last known result of a test."""

    outcome: TestOutcome
    target: str
    """Argument with which the test is run again from the current folder."""
    results: Path

    @property
    def file(self) -> str:
        return self.target.partition("::")[0]


class _Watch:
    """The screen, the current run, and the last results of all tests."""

    def __init__(
        self,
        targets: Sequence[str],
        pytest_args: Sequence[str],
        folder: Path,
        run: Callable[[Sequence[str]], NoReturn],
    ) -> None:
        self._targets = tuple(targets)
        self._pytest_args = tuple(pytest_args)
        self._folder = folder
        self._run = run
        self._files = SavedFiles(Path.cwd(), interval_s=SAVED_POLL_S)
        self._child: Child | None = None
        self._asked: tuple[str, ...] = ()
        self._number = 0
        self._last: RunResult | None = None
        self._known: dict[str, _Known] = {}
        self._broken: dict[str, str] = {}
        """Files that could not be collected -> the reason."""
        self._why = ""

    def stay(self) -> None:
        """Run until the user quits."""
        self._start(self._targets, "the first run")
        try:
            while self._handle_key(self._wait()):
                if self._child is not None and self._child.poll() is not None:
                    self._read_results()
                if saved := self._files.scan():
                    self._handle_saved(saved)
        except KeyboardInterrupt:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # the terminal is closed
                raise
        finally:
            self._end_run()

    def _wait(self) -> str:
        """Wait for a key, the end of a run, or the time of the next scan. Return the key, if any."""
        if 0 not in wait_any(0, self._child, timeout_s=self._files.interval_s):
            return ""
        keys = os.read(0, _MOST_KEYS).decode(errors="replace")
        # Of keys in quick succession the last one counts: each run would only end the one before.
        # An empty answer is the end of a terminal that was closed.
        return "q" if not keys or "q" in keys else keys[-1]

    def _handle_key(self, key: str) -> bool:
        """Handle a key. Return False to quit."""
        match key:
            case "q":
                return False
            case "\n" | "\r":
                self._start(self._targets, "all")
            case "f" if failed := [*self._broken, *(known.target for known in self._failed())]:
                self._start(failed, "failed tests")
            case "r":
                self._show_log()
        return True

    def _handle_saved(self, saved: Sequence[Path]) -> None:
        tests = {Path(file) for file in (*self._broken, *(known.file for known in self._known.values()))}
        touched = find_touched(saved, sorted(tests), self._files.names) if tests else None
        targets = self._targets if touched is None else tuple(map(str, sorted(touched)))
        # The run that this one ends has given no verdict on its files.
        waiting = self._asked if self._child is not None else ()
        whole = self._targets in (targets, waiting)
        asked = self._targets if whole else tuple(dict.fromkeys([*targets, *waiting]))
        self._start(asked, f"saved {', '.join(map(str, saved[:3]))}")

    def _start(self, targets: Sequence[str], why: str) -> None:
        self._end_run()
        self._asked, self._why = tuple(targets), why
        self._number += 1
        results, before = self._results(self._number), self._results(self._number - 1) / FILE_NAME
        # Each run is a fork of this process that becomes the command, so that no state of an earlier run is left.
        words = ["run", "--resident", *self._asked, f"--results={results}", "--progress=lines"]
        if before.exists():
            words += [f"--timings={before}", "--failed-first"]
        watch = os.getpid()
        # Until the child has its output, a signal would print a traceback on the screen.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._child = fork_child(lambda: self._be_command(words, watch), new_session=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        self._draw()

    def _be_command(self, words: Sequence[str], watch: int) -> None:
        for signum in _ENDING:
            signal.signal(signum, signal.SIG_DFL)
        # Since the child leads a session, a closed terminal does not reach it.
        die_with_parent(watch)  # its reaper or its resident parent then ends the run
        output = os.open(self._output(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, into in ((null, 0), (output, 1), (output, 2)):
            os.dup2(fd, into)
        new_streams()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        sys.argv = ["disttest", *words, "--", *self._pytest_args]
        if (code := run_by_parent(sys.argv[1:], environment())) is not None:
            leave(code)
        try:
            self._run(sys.argv[1:])
        except SystemExit as leaving:
            leave(leaving.code if isinstance(leaving.code, int) else 1)

    def _end_run(self) -> None:
        """End the current run with SIGINT."""
        if self._child is not None:
            self._child.signal(signal.SIGINT)
            # Twice the time of the supervisor, which itself waits for its pytest.
            self._child.wait(2 * SUPERVISOR_CANCEL_S)
            end_all([self._child], term_grace_s=TICK_S)
            self._child.close()
            self._child = None

    def _read_results(self) -> None:
        assert self._child is not None
        self._child.close()
        self._child = None
        results = self._results(self._number)
        self._last = fold(read_events(results / FILE_NAME)) if (results / FILE_NAME).exists() else None
        if self._last is not None:
            self._forget(self._asked)
            self._broken |= {
                seen_from_start(each.nodeid, self._last): each.message
                for each in self._last.collection_errors
            }
            for outcome in self._last.tests:
                self._known[outcome.test.nodeid] = _Known(
                    outcome, target_of(outcome.test, self._last), results
                )
        # The screen can show logs of failures from earlier runs.
        used = {results, *(known.results for known in self._known.values())}
        for folder in self._folder.glob("[0-9]*"):
            if folder not in used:
                shutil.rmtree(folder, ignore_errors=True)
        self._draw()

    def _forget(self, asked: Sequence[str]) -> None:
        """Forget the results of files that have run again: a test that is gone from them has no verdict."""
        everything = tuple(asked) == self._targets
        self._known = {
            nodeid: known
            for nodeid, known in self._known.items()
            if not everything and known.file not in asked
        }
        self._broken = {
            file: why for file, why in self._broken.items() if not everything and file not in asked
        }

    def _results(self, number: int) -> Path:
        return self._folder / str(number)

    def _output(self) -> Path:
        return self._folder / "output"

    def _failed(self) -> list[_Known]:
        return [known for known in self._known.values() if known.outcome.final.outcome.is_bad]

    def _draw(self) -> None:
        """Draw the screen: the current run, the failures, the keys."""
        lines = [f"{_FAILED} {file}: {one_line(why, 200)}" for file, why in self._broken.items()]
        lines += [
            f"{_FAILED} {known.outcome.test.nodeid}: {one_line(known.outcome.final.message, 200)}"
            for known in self._failed()
        ]
        _show([f"disttest watch {' '.join(self._targets)}: {self._why}", self._verdict(len(lines)), *lines])

    def _verdict(self, failing: int) -> str:
        if self._child is not None:
            return "running"
        if self._last is None:
            output = (
                self._output().read_text(errors="replace").strip().splitlines()
                if self._output().exists()
                else []
            )
            return f"nothing was run: {output[-1] if output else 'it printed nothing'}"
        spent = duration(self._last.ended_at_s - self._last.started_at_s)
        ran = f"the last run: {count(len(self._last.tests), 'test')} in {spent}"
        known = count(len(self._known), "test")
        if not failing:
            return f"passed: {known} ({ran})"
        failed = [f"{len(self._failed())} of {known}"] if self._failed() else []
        broken = [f"{count(len(self._broken), 'file')} not collected"] if self._broken else []
        return f"FAILED: {', '.join([*failed, *broken])} ({ran})"

    def _show_log(self) -> None:
        """Show the end of the log of the rank that a failed test is blamed on; the next key leads back."""
        for known in self._failed():
            final = known.outcome.final
            logs = {record.rank: known.results / record.log for record in final.ranks if record.log}
            path = logs.get(final.culprit if final.culprit is not None else -1) or next(
                iter(logs.values()), None
            )
            if path is not None and path.exists():
                _show(
                    path.read_text(errors="replace").splitlines()[-_room() :], keys=f"any key: back   {path}"
                )
                os.read(0, 1)
                break
        self._draw()


def _show(lines: Sequence[str], *, keys: str = _KEYS) -> None:
    """Clear the screen and write as many lines as fit, cut to its width, with the keys below them."""
    columns = shutil.get_terminal_size().columns
    shown = [line.expandtabs()[: columns - 1] for line in lines[: _room()]]
    hidden = len(lines) - len(shown)
    more = [f"… and {hidden} more"] if hidden else []
    sys.stdout.write(_CLEAR + "\n".join([*shown, *more, "", keys[: columns - 1]]) + "\n")
    sys.stdout.flush()


def _room() -> int:
    """Number of lines on the screen without those of the keys."""
    return max(3, shutil.get_terminal_size().lines - 4)


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Within the context, SIGTERM and a closed terminal unwind the stack, which ends the run and removes its folders."""

    def leave_by(number: int, _frame: object) -> None:
        for signum in _ENDING:
            signal.signal(signum, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for signum in _ENDING:
        signal.signal(signum, leave_by)
    yield


@contextlib.contextmanager
def _removed_after_kill(folder: Path) -> Iterator[None]:
    """Within the context, a process waits for the end of this one, and then removes the folder."""
    read, write = os.pipe()
    # A process, not a handler: SIGKILL of this one runs none.
    child = fork_child(lambda: _remove_later(read, folder), new_session=True)
    os.close(read)
    try:
        yield
    finally:
        end_all([child])
        child.close()
        os.close(write)


def _remove_later(line: int, folder: Path) -> None:
    outlive(line)
    deadline_s = monotonic() + 2 * SUPERVISOR_CANCEL_S
    while folder.exists() and monotonic() < deadline_s:  # the run writes into it until it has ended
        shutil.rmtree(folder, ignore_errors=True)
        sleep(TICK_S)


@contextlib.contextmanager
def _key_by_key() -> Iterator[None]:
    """Within the context, keys arrive as they are pressed and are not echoed."""
    before = termios.tcgetattr(0)
    # Not raw mode: Ctrl-C still is SIGINT, and output needs no carriage returns.
    tty.setcbreak(0)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal is closed
            termios.tcsetattr(0, termios.TCSADRAIN, before)
