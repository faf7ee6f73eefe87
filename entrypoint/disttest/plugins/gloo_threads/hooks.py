"""Hooks that lower the priority of gloo's message threads."""

from __future__ import annotations

from disttest.hookspecs import hookimpl


@hookimpl
def disttest_join_watch() -> None:
    """Observe the groups that tests create."""
    from disttest import observe
    from disttest.plugins.gloo_threads.message_threads import GiveWay

    observe.install(GiveWay())


@hookimpl
def disttest_group_made() -> None:
    """Treat the threads of the default group, which exists before any tool observes the rank."""
    from disttest.plugins.gloo_threads.message_threads import give_way

    give_way()


@hookimpl
def disttest_load_parts() -> None:
    """Import the part in ranks."""
    from disttest.plugins.gloo_threads import message_threads  # noqa: F401
