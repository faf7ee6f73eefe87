"""The quarantine in a pytest process."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from disttest.extras.flaky.hooks import FILE
from disttest.extras.flaky.judging import InQuarantine, data_of, hide_report
from disttest.extras.flaky.quarantine import Entry, entry_of, find_quarantine, today
from disttest.options.run import RunOptions
from disttest.runtime.controller.expand import collected_as, shape_of
from disttest.runtime.controller.orders import ControllerOrder, order_of
from disttest.runtime.controller.session_options import has_asked

_ENTRIES = pytest.StashKey[Sequence[Entry]]()
_PID = pytest.StashKey[int]()
"""The process that read them. Its forks are worlds and ranks, where the world judges."""


def read_for_session(items: Sequence[pytest.Item], config: pytest.Config, options: RunOptions) -> None:
    """Read the file, unless this is a plain pytest session in which disttest has no part.

    Raises:
        UsageError: the file is not valid.
    """
    if has_asked(config) or any(shape_of(item) is not None for item in items):
        config.stash[_ENTRIES] = find_quarantine(FILE.of(options), config.rootpath)
        config.stash[_PID] = os.getpid()


def entry_in_session(item: pytest.Item) -> InQuarantine | None:
    """The entry of a test; None if it has none."""
    entries = item.config.stash.get(_ENTRIES, ())
    entry = entry_of(entries, collected_as(item) or item.nodeid) if entries else None
    return data_of(entry, expired=entry.has_expired(today())) if entry else None


def hide_in_controller(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keep the failure of an ordinary test in quarantine from failing the run."""
    # A rank must report the failure as it is: the world compares the outcomes of all ranks, and then applies
    # the quarantine. So must a replay, which compares its outcome with the recorded one.
    is_controller = item.config.stash.get(_PID, 0) == os.getpid() and isinstance(
        order_of(item.config), ControllerOrder
    )
    entry = entry_in_session(item) if is_controller else None
    if entry is not None:
        hide_report(report, entry)
