"""The border between test classes that start their ranks by themselves and whatever starts processes for them.

The classes live here and below; the host (one per main process) is provided by the runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from disttest.results.exit_codes import ExitRule


class RanksFailed(RuntimeError):
    """Raised in the main process of a test, once its ranks have ended badly."""


class RankPipe(Protocol):
    """A rank's line to the main process; ``send`` of a text says what the rank's test raised."""

    def send(self, text: object) -> None:
        """Report an error."""

    def note(self, error: BaseException) -> None:
        """The test raised this just now; its report will say so."""

    def close(self) -> None:
        """Nothing more is to come."""


Body = Callable[[int, RankPipe], None]
"""What a rank runs: its number and its line."""


class RankHandle(Protocol):
    """A rank as the main process sees it; the part of ``multiprocessing.Process`` that tests look at."""

    pid: int

    @property
    def exitcode(self) -> int | None:
        """None while it lives; minus the signal's number where one ended it."""

    def terminate(self) -> None:
        """Send SIGTERM, as ``multiprocessing`` does."""


class RankHost(Protocol):
    """Starts and supervises the ranks of a main process."""

    def start(self, size: int, body: Body) -> Sequence[RankHandle]:
        """Start that many ranks, each of which runs ``body`` and ends."""

    def join(self, rule: ExitRule) -> None:
        """Wait for the ranks.

        Raises:
            RanksFailed: a rank failed, died, hung, or left with a code that the rule does not allow.
            unittest.SkipTest: all of them skipped.
        """

    def keep(
        self, owner: object, size: int, prepare: Callable[[int], None], run: Callable[[str], None]
    ) -> None:
        """Start ranks that stay for many tests of ``owner``, unless they are there already and well."""

    def run_kept(self, owner: object, name: str) -> None:
        """Have each of the kept ranks call ``run(name)``, and wait; raises as :meth:`join` does."""

    def release(self, owner: object) -> None:
        """Let the kept ranks of ``owner`` leave."""

    def report_threads(self, size: int, raised: Sequence[tuple[int, BaseException]]) -> None:
        """Ranks that are threads of this process have ended, and these raised, in this order."""


_host: RankHost | None = None


def provide_host(host: RankHost | None) -> None:
    """Say who starts ranks in this process; None: nobody does."""
    global _host
    _host = host


def tell_of_threads(size: int, raised: Sequence[tuple[int, BaseException]]) -> None:
    """Have the host, if there is one, report ranks that are threads of this process."""
    if _host is not None:
        _host.report_threads(size, raised)


def current_host() -> RankHost:
    """The host of this process.

    Raises:
        RuntimeError: nobody runs ranks here.
    """
    if _host is None:
        raise RuntimeError(
            "this test starts ranks, and nothing here can supervise them: run it with `disttest run FILE`, "
            "or with pytest and the disttest plugin (not with `python -m unittest` or `-p no:disttest`)"
        )
    return _host
