"""Run everything that does not run in the pytest process: world tests, then isolated ordinary tests."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from disttest.model import WorldKind
from disttest.plugin_manager import plugin_manager
from disttest.runtime.controller.collect import is_ordinary
from disttest.runtime.controller.controller import Controller, DeadlinePassed, RunStopped
from disttest.runtime.controller.fork_sources import fork_sources
from disttest.runtime.controller.session import RunSession

__all__ = ["DeadlinePassed", "RunStopped", "run_out_of_process"]


def run_out_of_process(session: pytest.Session, run: RunSession, note: Callable[[str], None]) -> None:
    """Run them; both kinds are forked from the same processes.

    Args:
        session: the session that has collected.
        run: state of the run; the journal is open.
        note: receives what is being done.

    Raises:
        DeadlinePassed: the deadline of the run passed first.
        RunStopped: a test ended the run.
        pytest.Session.Failed: ``-x`` or ``--maxfail`` applied.
    """
    assert run.recorder is not None
    assert run.workplace is not None
    assert run.devices is not None
    apart = [(item, test) for item, test in run.pairs if not is_ordinary(test)]
    plugin_manager().call("disttest_load_parts", config=session.config)
    items = [item for item, _ in apart]
    for _, message in plugin_manager().items(
        "disttest_worlds_begin", str, items=items, config=session.config
    ):
        run.recorder.noted(message)
    making = fork_sources(
        session,
        {test.nodeid: item for item, test in apart},
        run.find_hazards(),
        run.recorder,
        host=run.host,
        scratch=run.workplace.scratch,
        apart=run.options.ranks_collect,
    )
    with making as sources:
        control = functools.partial(
            Controller,
            session,
            run.options,
            run.devices,
            run.host,
            run.recorder,
            run.workplace,
            fork_sources=sources,
            deadline_s=run.deadline_s,
            timings=run.timings(),
            failed_first=run.work.failed_first,
        )
        note("running the worlds")
        control(letter=run.options.world_letter).run([pair for pair in apart if pair[1].world is not None])
        note("running ordinary tests in processes of their own")
        control(letter="p").run([pair for pair in apart if pair[1].kind is WorldKind.PROCESS])
