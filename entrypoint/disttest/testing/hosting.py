"""The interface between test classes that start their ranks and the process that supervises these.

The classes are in this package. The runner provides the host, one for each main process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from disttest.results.exit_codes import ExitRule


class RanksFailed(RuntimeError):
    """Raised in the main process of a test when a rank failed."""


class RankPipe(Protocol):
    """A rank's channel to the main process."""

    def send(self, text: object) -> None:
        """Report the text of an exception that the rank's test raised."""

    def note(self, error: BaseException) -> None:
        """Record an exception that the test has just raised, before its report."""

    def close(self) -> None:
        """Close the channel: no more messages follow."""


Body = Callable[[int, RankPipe], None]
"""The function that a rank runs, called with its number and its channel."""


class RankHandle(Protocol):
    """A rank as its main process sees it: the part of ``multiprocessing.Process`` that tests read."""

    pid: int

    @property
    def exitcode(self) -> int | None:
        """Exit code; None while it lives, negative for a signal."""

    def terminate(self) -> None:
        """Send SIGTERM, as ``multiprocessing`` does."""


class RankHost(Protocol):
    """The part of a main process that starts and supervises its ranks."""

    def start(self, size: int, body: Body) -> Sequence[RankHandle]:
        """Start ranks, each of which runs ``body`` and exits."""

    def join(self, rule: ExitRule) -> None:
        """Wait for the ranks.

        Raises:
            RanksFailed: a rank failed, crashed, hung, or exited with a code that the rule does not allow.
            unittest.SkipTest: all of them skipped.
        """

    def keep(
        self, owner: object, size: int, prepare: Callable[[int], None], run: Callable[[str], None]
    ) -> None:
        """Start ranks that stay for many tests of ``owner``, unless healthy ones exist."""

    def run_kept(self, owner: object, name: str) -> None:
        """Have each of the kept ranks call ``run(name)``, and wait. It raises as :meth:`join` does."""

    def keeps(self, owner: object) -> bool:
        """Return whether healthy ranks of ``owner`` stay for its next test."""

    def release(self, owner: object) -> None:
        """Let the kept ranks of ``owner`` exit."""

    def report_threads(self, size: int, raised: Sequence[tuple[int, BaseException]]) -> None:
        """Report ranks that were threads of this process, and the exceptions that they raised, in order."""


ThreadReport = Callable[[int, Sequence[tuple[int, BaseException]]], None]
"""Receives the number of ranks that were threads, and the exceptions that they raised, in order."""

_host: RankHost | None = None
_judge_threads: ThreadReport | None = None


def provide_host(host: RankHost | None) -> None:
    """Set the host of this process; None if ranks cannot be started here."""
    global _host
    _host = host


def provide_thread_judge(judge: ThreadReport) -> None:
    """Set the function that raises the outcome of threads where no host reports them."""
    global _judge_threads
    _judge_threads = judge


def report_rank_threads(size: int, raised: Sequence[tuple[int, BaseException]]) -> None:
    """Have the host or, without one, the judge of threads treat ranks that were threads of this process."""
    report = _host.report_threads if _host is not None else _judge_threads
    if report is not None:
        report(size, raised)


def current_host() -> RankHost:
    """Return the host of this process.

    Raises:
        RuntimeError: ranks cannot be started here.
    """
    if _host is None:
        raise RuntimeError(
            "this test starts ranks, and nothing here can supervise them: run it with `disttest run FILE`, "
            "or with pytest and the disttest plugin (not with `python -m unittest` or `-p no:disttest`)"
        )
    return _host
