"""Test classes that launch their ranks (``is_dist_test``, as DeepSpeed's), with only the launch replaced.

Everything else is the suite's own code. Its conftest calls the class with pytest's request; the class collects
fixtures, chooses sizes, looks for devices, and launches its ranks once for each size. Each rank runs the class's
``_dist_run``.
"""

from __future__ import annotations

import functools
import pickle
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from disttest.host.fork_hazard import fork_hazard
from disttest.plugins.launching_classes.rank_host import ForkHost
from disttest.plugins.launching_classes.recognise import definitions, launchers, launches_ranks
from disttest.results.exit_codes import TEST_SKIPS, ExitRule
from disttest.testing.helpers import find_free_port
from disttest.testing.hosting import RankPipe


def host_launching_classes(classes: Iterable[type], host: ForkHost) -> None:
    """Make classes of this kind launch their ranks through the host, in this process and its forks."""
    found = {
        (name, definitions(cls, name)[0])
        for cls in set(classes)
        if launches_ranks(cls)
        for name in launchers(cls)
    }
    for name, base in found:
        setattr(base, name, _hosted(vars(base)[name], host))


def _hosted(launch_by_itself: Callable[..., None], host: ForkHost) -> Callable[..., None]:
    """Return the launching method. Its first argument is the number of ranks; each rank receives the following ones."""

    @functools.wraps(launch_by_itself)
    def launch(self: Any, num_procs: int, *more: Any) -> None:
        if hazard := fork_hazard(on_gpus=host.on_gpus):
            print(  # noqa: T201
                f"disttest: ranks are started by their class instead of forked here: {hazard}",
                file=sys.stderr,
            )
            launch_by_itself(self, num_procs, *more)
            host.report_passed(num_procs)
            return
        self.non_daemonic_procs = False  # a rank then returns the reason of a skip and needs no queue
        arguments = (num_procs, str(find_free_port()), *more)
        run = _run_in_kept if getattr(self, "reuse_dist_env", False) else _run_in_new
        try:
            run(self, arguments, host)
        except unittest.SkipTest as skip:
            # Outside of unittest's classes, pytest 9.0.0 reports unittest.SkipTest as a failure; 9.0.1 skips again:
            # https://github.com/pytest-dev/pytest/issues/13895
            pytest.skip(str(skip))

    return launch


def _run_in_new(case: Any, arguments: tuple[Any, ...], host: ForkHost) -> None:
    def body(rank: int, pipe: RankPipe) -> None:
        try:
            _run(case, rank, arguments)
        except unittest.SkipTest as skip:
            pipe.note(skip)
            raise SystemExit(TEST_SKIPS["generic"].exit_code) from None
        if hasattr(case, "_dist_destroy"):
            case._dist_destroy()

    host.start(arguments[0], body)
    host.join(ExitRule())


def _run_in_kept(case: Any, arguments: tuple[Any, ...], host: ForkHost) -> None:
    """Run the test in kept ranks, which are older than it. It is pickled for them, as it would be for a pool."""
    size = arguments[0]
    rank = _KeptRank()
    host.keep((_KeptRank, size), size, rank.prepare, rank.run)
    with tempfile.NamedTemporaryFile() as file:
        pickle.dump((case, arguments), file)
        file.flush()
        host.run_kept((_KeptRank, size), file.name)


class _KeptRank:
    """A rank that stays for several tests."""

    rank = -1

    def prepare(self, rank: int) -> None:
        """Set the number of this rank."""
        self.rank = rank

    def run(self, path: str) -> None:
        """Run the test in this file."""
        case, arguments = pickle.loads(Path(path).read_bytes())  # noqa: S301  # written by its main process
        _run(case, self.rank, arguments)


def _run(case: Any, rank: int, arguments: tuple[Any, ...]) -> None:
    """Run the class's own function in a rank.

    Raises:
        unittest.SkipTest: the test skips; such classes return the reason.
    """
    try:
        reason = case._dist_run(rank, *arguments)
    except pytest.skip.Exception as skip:
        reason = str(skip)
    if isinstance(reason, str) and reason:
        raise unittest.SkipTest(reason)
