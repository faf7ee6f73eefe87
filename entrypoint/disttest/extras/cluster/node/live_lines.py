"""Live output of the ranks of this node, limited so that no rank can fill the channel.

Each rank may send ``AT_ONCE`` bytes, and ``A_SECOND`` more in each second. Of a rank that writes more, the newest
``A_SECOND`` bytes are sent once a second, after a line that states how much is left out. Without a limit the output of
a rank would delay verdicts in the same pipe; the complete log follows after the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from disttest.extras.cluster.protocol.wire import RankOutput
from disttest.reports.text import count
from disttest.results.growing_logs import GrowingLog, GrowingLogs
from disttest.runtime.messages.protocol import clean_text

AT_ONCE = 64 * 1024
A_SECOND = 16 * 1024


class _Allowance:
    """Bytes that a rank may send now."""

    def __init__(self, now_s: float) -> None:
        self.left = float(AT_ONCE)
        self._at_s = now_s

    def grow(self, now_s: float) -> None:
        self.left = min(AT_ONCE, self.left + (now_s - self._at_s) * A_SECOND)
        self._at_s = now_s


class LiveLines:
    """Follows the logs of the tests that run on this node.

    Args:
        results: the node's results directory.
        clock: returns monotonic seconds.
        asked: whether the client shows output; otherwise nothing is read or sent.
    """

    def __init__(self, results: Path, clock: Callable[[], float], *, asked: bool) -> None:
        self._results = results
        self._clock = clock
        self._asked = asked
        self._followed: dict[str, GrowingLogs] = {}
        self._allowances: dict[GrowingLog, _Allowance] = {}

    @property
    def is_following(self) -> bool:
        """Whether a test runs whose output is sent."""
        return bool(self._followed)

    def begin(self, nodeid: str, folder: str) -> None:
        """Follow a test that starts; ``folder`` is that of its logs, relative to the results directory."""
        if self._asked:
            self._followed[nodeid] = GrowingLogs(folder)

    def poll(self) -> Iterator[RankOutput]:
        """Yield new output within the ranks' allowances."""
        for logs in self._followed.values():
            for log in logs.found_in(self._results):
                yield from self._news(log)

    def end(self, nodeid: str) -> Iterator[RankOutput]:
        """Yield the rest of the output of a test whose ranks are done."""
        logs = self._followed.pop(nodeid, None)
        for log in logs.found_in(self._results) if logs else ():
            left = int(self._allowance(log).left)
            # The end of a log says most about a failure, so it may exceed the allowance once.
            mark = _skip_to(log, max(left, A_SECOND))
            del self._allowances[log]
            yield from _output(log, [*mark, *map(_text, log.rest())])

    def _news(self, log: GrowingLog) -> Iterator[RankOutput]:
        allowance = self._allowance(log)
        mark: list[str] = []
        if log.waiting > allowance.left:
            # Not yet: each small piece would come with a line about the omitted bytes.
            if allowance.left < A_SECOND:
                return
            mark = _skip_to(log, A_SECOND)
        allowance.left -= log.waiting
        yield from _output(log, [*mark, *map(_text, log.news())])

    def _allowance(self, log: GrowingLog) -> _Allowance:
        now_s = self._clock()
        allowance = self._allowances.setdefault(log, _Allowance(now_s))
        allowance.grow(now_s)
        return allowance


def _skip_to(log: GrowingLog, newest: int) -> list[str]:
    """Skip output that does not fit. Return a line that says so, if there is any."""
    if log.waiting <= newest:
        return []
    left_out = count(log.skip_all_but(newest), "byte")
    return [f"[disttest: {left_out} left out; a rank on a node shows {A_SECOND // 1024} KiB a second]"]


def _output(log: GrowingLog, lines: list[str]) -> Iterator[RankOutput]:
    if lines:
        yield RankOutput(rank=log.rank, lines=tuple(lines))


def _text(line: bytes) -> str:
    return clean_text(line.decode("utf-8", "replace"))
