"""What ``disttest run`` shows while the tests run: our view of it, or pytest's own output where that was asked for."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from rich.console import Console

from disttest.host.devices import detect_machine
from disttest.model import TestCase
from disttest.outgoing import outgoing
from disttest.planning.timings import Timings, hardware_key
from disttest.reports.progress import Expect
from disttest.reports.views import RelayView, RunView, make_view
from disttest.results.durations import read_timings

Progress = Literal["auto", "live", "lines", "pytest"]

RUNS_NOTHING = frozenset(
    {
        *("--collect-only", "--collectonly", "--co", "--fixtures", "--funcargs", "--fixtures-per-test"),
        *("--markers", "--help", "--version", "--cache-show", "--setup-plan"),
    }
)
"""With these, pytest answers a question and runs no test."""
NEEDS_TERMINAL = frozenset(
    {
        *("--capture=no", "--pdb", "--trace", "--verbose", "--setup-show", "--setup-only", "--debug"),
    }
)
"""With these, pytest talks to the user itself, or asks for what only its own terminal says."""
SHORT = {"v": "--verbose", "s": "--capture=no", "h": "--help", "V": "--version", "n": "--numprocesses"}
SHORT_WITH_VALUE = frozenset("kmncprWo")
"""Short options of pytest and its friends that the rest of the word belongs to, or the next word."""


@dataclass(frozen=True, kw_only=True)
class ProgressMode:
    """How a run is shown."""

    view: RunView | None
    """None leaves the terminal to pytest."""
    console: Console
    pytest_args: Sequence[str] = ()

    def pytest_arguments(self) -> list[str]:
        """What pytest has to know of it: our arguments come before those of the user, which win."""
        if self.view is None:
            return []
        if isinstance(self.view, RelayView):
            return ["--color=yes"] if self.console.is_terminal else []
        colour = self.console.is_terminal and not self.console.no_color
        return [f"--disttest-view={self.console.width}", *(["--color=yes"] if colour else [])]

    @property
    def owes_failures(self) -> bool:
        """Whether nobody has told the failures in full by the end of the run."""
        return self.view is not None and not self.view.tells_failures


def choose_progress(
    progress: str,
    pytest_args: Sequence[str],
    environ: Mapping[str, str],
    results: Path,
    timings: Sequence[Path],
) -> ProgressMode:
    """Choose the view of a run.

    Args:
        progress: as the user asked; ``auto`` is live on a terminal and lines elsewhere, and leaves the terminal to
            pytest where the arguments for it ask for that.
        pytest_args: what the user wants pytest to be told.
        environ: the environment.
        results: where the logs of ranks will be.
        timings: files of earlier runs, for the time left.
    """
    _take_any_character()
    words = [*_words(environ.get("PYTEST_ADDOPTS", "")), *pytest_args]
    on_github = environ.get("GITHUB_ACTIONS") == "true"
    lively = progress == "live" or (progress == "auto" and sys.stdout.isatty() and not on_github)
    console = Console(
        force_terminal=None if sys.stdout.isatty() else lively, no_color="--color=no" in words or None
    )
    if progress == "pytest" or (progress == "auto" and asks_for_terminal(words)):
        # On a terminal pytest can ask back; elsewhere, and where values are to be hidden, we stand between.
        at_terminal = sys.stdout.isatty() and not outgoing.active
        return ProgressMode(view=None if at_terminal else RelayView(console), console=console)
    view = make_view(
        console,
        live=lively,
        on_github=on_github,
        quiet="-q" in words or "--quiet" in words,
        results_dir=results,
        expect=_expectations(timings) if timings else None,
    )
    return ProgressMode(view=view, console=console)


def asks_for_terminal(words: Sequence[str]) -> bool:
    """Whether these arguments make pytest talk to the user itself."""
    return any(option in NEEDS_TERMINAL for option in _options(words))


def shows_output(pytest_args: Sequence[str]) -> bool:
    """Whether what tests print is to be shown at once, and not captured; the last word counts."""
    captures = [option for option in _options(pytest_args) if option.startswith("--capture=")]
    return captures[-1:] == ["--capture=no"]


def runs_nothing(pytest_args: Sequence[str]) -> bool:
    """Whether these arguments make pytest answer a question instead of running tests."""
    return any(option in RUNS_NOTHING for option in _options(pytest_args))


def _options(words: Sequence[str]) -> Iterator[str]:
    """The long names of the options, without their values, but for ``--capture=no``."""
    left = iter(words)
    for word in left:
        name, _, value = word.partition("=")
        if name == "--capture":
            yield f"--capture={value or next(left, '')}"
        elif word.startswith("--"):
            yield name
        elif word.startswith("-"):
            yield from _short_options(word, left)


def _short_options(word: str, left: Iterator[str]) -> Iterator[str]:
    for position, letter in enumerate(word[1:], 2):
        if letter in SHORT:
            yield SHORT[letter]
        if letter in SHORT_WITH_VALUE:
            if position == len(word):
                next(left, None)
            return


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # pytest will say what is wrong with it
        return []


def _expectations(paths: Sequence[Path]) -> Expect:
    @cache
    def timings() -> Timings:
        # Read when the first test is known, while pytest goes on; warnings are the plugin's to tell.
        hardware = hardware_key(detect_machine().hardware())
        return read_timings(paths, now_s=time.time(), hardware=hardware)[0]  # noqa: TID251

    def expect(test: TestCase) -> float:
        return timings().expect(test)

    return expect


def _take_any_character() -> None:
    """A terminal of another encoding shows a mark for what it does not know; it is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, io.UnsupportedOperation):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
