"""The display of ``disttest run`` while tests run: disttest's view, or pytest's own output if requested."""

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

from disttest.model import TestCase
from disttest.options.environment import ci_job
from disttest.outgoing import outgoing
from disttest.planning.timings import Timings, hardware_key
from disttest.reports.progress import Expect
from disttest.reports.views import RelayView, RunView, make_view
from disttest.results.durations import read_timings
from disttest.results.relay import MaskedFile
from disttest.runtime.controller.devices import this_machine

Progress = Literal["auto", "live", "lines", "pytest"]

RUNS_NOTHING = frozenset(
    {
        *("--collect-only", "--collectonly", "--co", "--fixtures", "--funcargs", "--fixtures-per-test"),
        *("--markers", "--help", "--version", "--cache-show", "--setup-plan"),
    }
)
"""Options with which pytest answers a question and runs no test."""
NEEDS_TERMINAL = frozenset(
    {
        *("--capture=no", "--pdb", "--trace", "--verbose", "--setup-show", "--setup-only", "--debug"),
    }
)
"""Options with which pytest interacts with the user, or prints what only its own terminal output has."""
SHORT = {"v": "--verbose", "s": "--capture=no", "h": "--help", "V": "--version", "n": "--numprocesses"}
SHORT_WITH_VALUE = frozenset("kmncprWo")
"""Short options of pytest and plugins that take the rest of the word, or the next word, as their value."""


@dataclass(frozen=True, kw_only=True)
class ProgressMode:
    """The display of a run."""

    view: RunView | None
    """None leaves the terminal to pytest."""
    console: Console
    pytest_args: Sequence[str] = ()

    def pytest_arguments(self) -> list[str]:
        """Return disttest's arguments for pytest. They precede those of the user, which take precedence."""
        if self.view is None:
            return []
        if isinstance(self.view, RelayView):
            # pytest writes into a pipe, into which it would write no colours.
            return ["--color=yes"] if self.console.is_terminal else []
        return ["--color=yes"] if self.console.is_terminal and not self.console.no_color else []

    @property
    def columns(self) -> int:
        """Width of the view that replaces most output of pytest; 0 if pytest's own output is shown."""
        return 0 if self.view is None or isinstance(self.view, RelayView) else self.console.width

    @property
    def owes_failures(self) -> bool:
        """Whether failures have not been printed in full by the end of the run."""
        return self.view is not None and not self.view.shows_failures


def choose_progress(
    progress: str,
    pytest_args: Sequence[str],
    environ: Mapping[str, str],
    results: Path,
    timings: Sequence[Path],
) -> ProgressMode:
    """Choose the view of a run.

    Args:
        progress: the requested display; ``auto`` is live on a terminal and lines elsewhere, and leaves the terminal to
            pytest if its arguments require that.
        pytest_args: the user's arguments for pytest.
        environ: the environment.
        results: directory of the logs of ranks.
        timings: files of earlier runs, for the remaining time.
    """
    _take_any_character()
    # pytest reads this variable before its command line, whose options win.
    words = [*_words(environ.get("PYTEST_ADDOPTS", "")), *pytest_args]
    job = ci_job(environ)
    lively = progress == "live" or (progress == "auto" and sys.stdout.isatty() and job is None)
    console = Console(
        # Names of tests may have a value that a test has taught since the journal has them.
        file=MaskedFile(sys.stdout),  # type: ignore[arg-type]
        force_terminal=None if sys.stdout.isatty() else lively,
        no_color="--color=no" in words or None,
    )
    if progress == "pytest" or (progress == "auto" and asks_for_terminal(words)):
        # On a terminal pytest can prompt the user. Elsewhere, and if values must be hidden, its output is relayed.
        at_terminal = sys.stdout.isatty() and not outgoing.active
        # A reader that goes away, as in `-- -v | head`, would otherwise end pytest before a test has run.
        return ProgressMode(view=None if at_terminal else RelayView(console), console=console)
    # pytest writes into pipes under a view: two writers on one terminal would tear the view apart.
    view = make_view(
        console,
        live=lively,
        job=job,
        quiet="-q" in words or "--quiet" in words,
        results_dir=results,
        expect=_expectations(timings) if timings else None,
    )
    return ProgressMode(view=view, console=console)


def asks_for_terminal(words: Sequence[str]) -> bool:
    """Return whether these arguments make pytest interact with the user."""
    return any(option in NEEDS_TERMINAL for option in _options(words))


def shows_output(pytest_args: Sequence[str]) -> bool:
    """Return whether output of tests must be shown immediately and not captured; the last option counts."""
    captures = [option for option in _options(pytest_args) if option.startswith("--capture=")]
    return captures[-1:] == ["--capture=no"]


def runs_nothing(pytest_args: Sequence[str]) -> bool:
    """Return whether these arguments make pytest answer a question instead of running tests."""
    return any(option in RUNS_NOTHING for option in _options(pytest_args))


def _options(words: Sequence[str]) -> Iterator[str]:
    """Yield the long names of the options without their values, except for ``--capture=no``."""
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
    # `-vsk sum`: letters without a value, up to one that takes the rest of the word or the next word.
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
    except ValueError:  # pytest will report the error
        return []


def _expectations(paths: Sequence[Path]) -> Expect:
    @cache
    def timings() -> Timings:
        # Read when the first test is known, while pytest continues. The plugin reports warnings.
        hardware = hardware_key(this_machine().hardware())
        return read_timings(paths, now_s=time.time(), hardware=hardware)[0]  # noqa: TID251

    def expect(test: TestCase) -> float:
        return timings().expect(test)

    return expect


def _take_any_character() -> None:
    """Replace characters that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, io.UnsupportedOperation):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
