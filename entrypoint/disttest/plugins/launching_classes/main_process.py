"""The main process of hosted test classes. It runs their pytest protocol and is not a rank."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest.unittest import TestCaseFunction

from disttest.host.fork_hazard import fork_hazard
from disttest.host.process import adopt_orphans, flush_output, leave
from disttest.plugins.launching_classes.rank_host import ForkHost
from disttest.plugins.launching_classes.recognise import definitions, launchers, launches_ranks, torch_skips
from disttest.plugins.launching_classes.torch_bases import host_torch_bases
from disttest.results.exit_codes import SKIP_MESSAGES, TEST_SKIPS, ExitRule
from disttest.runtime.controller.wanted_worlds import ranks_may_differ
from disttest.runtime.messages.protocol import Channel, RunTest, TestDone
from disttest.runtime.rank import watchdog
from disttest.runtime.rank.child import redirect_output
from disttest.runtime.rank.rank import run_protocol, save, serve_orders, set_up_child, shared_fixtures
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.testing.helpers import find_free_port
from disttest.testing.hosting import RankPipe, provide_host


def host_launching_classes(classes: Iterable[type], host: ForkHost) -> None:
    """Make classes of this kind launch their ranks through the host, in this process and its forks."""
    found = {
        (name, definitions(cls, name)[0])
        for cls in set(classes)
        if launches_ranks(cls)
        for name in launchers(cls)
    }
    # Subclasses share one definition. A set replaces it once; twice would start each rank by a wrapper of a
    # wrapper.
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
        # DeepSpeed's switch for a pool of processes that keeps its process group between tests.
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
            _run_rank(case, rank, arguments)
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
    # A file, because orders are JSON and carry texts only.
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
        _run_rank(case, self.rank, arguments)


def _run_rank(case: Any, rank: int, arguments: tuple[Any, ...]) -> None:
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


def serve_main(
    spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]
) -> None:
    """Run tests until the world ends this process or is gone. Never returns."""
    # One thread: a pool of compute threads in this process would make forking unsafe.
    channel = set_up_child(msgspec.structs.replace(spec, threads=1), channel, session.config)
    adopt_orphans()
    # In the main process, because its ranks inherit what `setUp` finds and sets.
    os.environ.update(spec.machine_environment())  # noqa: TID251
    host = ForkHost(spec, channel, session.config, {**SKIP_MESSAGES, **torch_skips()})
    provide_host(host)
    host_torch_bases(host)
    host_launching_classes((cls for item in items.values() if (cls := getattr(item, "cls", None))), host)
    serve_orders(spec, channel, session, lambda order: _run(host, channel, order, session, items))
    # Kept ranks leave in order, before the end of this process would kill them.
    host.release(None)
    save()
    leave(0)


def _run(
    host: ForkHost,
    channel: Channel,
    order: RunTest,
    session: pytest.Session,
    items: Mapping[str, pytest.Item],
) -> None:
    item = items[order.nodeid]
    redirect_output(session.config, Path(order.log))
    _forget_instance(item)
    host.begin(order, may_differ=ranks_may_differ(item), is_torchs=isinstance(item, TestCaseFunction))
    run_protocol(items, order)
    # Before the last message of the test: it judges ranks that the test has never waited for.
    host.settle()
    flush_output()
    channel.send(
        TestDone(plugin_error=save(), leaks=watchdog.stop_leftover(), shares=bool(shared_fixtures(session)))
    )


def _forget_instance(item: pytest.Item) -> None:
    """Have pytest create a new instance: the collection may have used torch's own constructor."""
    vars(item).pop("_instance", None)
    vars(item)["_obj"] = None
