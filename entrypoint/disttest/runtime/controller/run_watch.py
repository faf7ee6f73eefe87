"""Interface for a plugin that watches the machine from before a run until its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from disttest.errors import PluginError
from disttest.model import TestResult
from disttest.plugin_manager import blaming, plugin_manager


class RunWatch:
    """Watches the machine for one run. It is made before the first test starts."""

    def clean(self, attempts: Callable[[], Collection[TestResult]]) -> Iterable[tuple[str, str]]:
        """Clean up when the tests have ended; return notes with the node id of each, empty for the whole run.

        Args:
            attempts: returns all attempts of the run.
        """
        del attempts
        return ()


def watch_run(results: Callable[[], Path]) -> dict[str, RunWatch]:
    """Have plugins watch a run; return the watch of each plugin.

    Raises:
        PluginError: a plugin failed.
    """
    return plugin_manager().named("disttest_watch_run", RunWatch, results=results)


def clean_up(
    watches: Mapping[str, RunWatch], attempts: Callable[[], Collection[TestResult]]
) -> Iterator[tuple[str, str]]:
    """Have the watches clean up, whatever one of them raises; yield node id and text of each note.

    Raises:
        PluginError: a plugin failed; all watches were asked.
    """
    failure: PluginError | None = None
    for name, watch in watches.items():
        try:
            with blaming(name, "disttest_watch_run", meant=PluginError):
                yield from watch.clean(attempts)
        except PluginError as error:
            # The watches behind this one clean up all the same. Its error is raised when they have.
            failure = failure or error
    if failure is not None:
        raise failure
