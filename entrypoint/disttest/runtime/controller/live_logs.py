"""``-s`` for tests with a world: what ranks print, as they print it, each line with its rank in front."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from pathlib import Path

import pytest

from disttest.masking import masker
from disttest.model import MAIN_RANK, Kind, TestCase
from disttest.results.narrative import STACKS_HEADING
from disttest.runtime.messages.protocol import clean_text

_COLOURS = ("cyan", "yellow", "green", "blue", "purple")
_BLOCK = 256 * 1024
"""Bytes of one log that are read in one look, so that no rank that floods its log keeps the others from being shown."""


class LiveLogs:
    """Shows the logs of the running tests on pytest's terminal, if it was given ``-s``."""

    def __init__(self, config: pytest.Config, results: Callable[[], Path]) -> None:
        self._reporter = config.pluginmanager.getplugin("terminalreporter")
        self.is_on = config.getoption("capture", default="") == "no" and self._reporter is not None
        self._results = results
        self._logs: dict[str, list[_Log]] = {}

    def begin(self, test: TestCase, attempt: int) -> None:
        """A test runs from now on."""
        if not self.is_on or test.world is None:
            return
        folder = f"logs/{test.slug}/attempt-{attempt}"
        ranks = range(test.world.size) if test.kind is Kind.RANKS else (MAIN_RANK,)
        names = {rank: "main.log" if rank == MAIN_RANK else f"rank{rank}.log" for rank in ranks}
        self._logs[test.nodeid] = [_Log(rank, f"{folder}/{name}") for rank, name in names.items()]

    def look(self) -> None:
        """Show the lines that are new."""
        for logs in self._logs.values():
            for log in logs:
                self._show(log, log.new_lines(self._results()))

    def end(self, nodeid: str) -> None:
        """A test is over: show the rest of its logs, without what disttest has added."""
        for log in self._logs.pop(nodeid, ()):
            self._show(log, log.new_lines(self._results(), last=True))

    def _show(self, log: _Log, lines: list[str]) -> None:
        masker.learn("".join(f"{line}\n" for line in lines).encode())  # before GitHub could see it
        tag = "main" if log.rank == MAIN_RANK else f"rank {log.rank}"
        for line in lines:
            self._reporter.ensure_newline()
            self._reporter.write(f"[{tag}] ", **{_COLOURS[log.rank % len(_COLOURS)]: True})
            self._reporter.write(f"{masker.text(clean_text(line))}\n")
        if lines:
            self._reporter.flush()


class _Log:
    """One log, and how much of it was read."""

    def __init__(self, rank: int, name: str) -> None:
        self.rank = rank
        self._name = name
        self._offset = 0
        self._begun = ""
        """A line that has no end yet."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_over = False

    def new_lines(self, results: Path, *, last: bool = False) -> list[str]:
        """The whole lines since the last call; with ``last`` all that is left, too."""
        if self._is_over:
            return []
        try:
            with (results / self._name).open("rb") as file:
                file.seek(self._offset)
                block = file.read(-1 if last else _BLOCK)
        except OSError:  # not there yet, or not on the disk while values are to be hidden
            block = b""
        self._offset += len(block)
        *lines, self._begun = (self._begun + self._decoder.decode(block)).split("\n")
        if last and self._begun:
            lines.append(self._begun)
        return self._own(lines)

    def _own(self, lines: list[str]) -> list[str]:
        added = next((number for number, line in enumerate(lines) if line.startswith(STACKS_HEADING)), None)
        self._is_over = added is not None
        own = lines if added is None else lines[:added]
        return own[:-1] if self._is_over and own[-1:] == [""] else own
