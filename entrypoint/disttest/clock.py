"""Clocks and sleep as they were before any test module or conftest was imported.

Tests make time stand still (freezegun, ``monkeypatch.setattr(time, "sleep", …)``); the limits of tests must hold all the same.
"""

from __future__ import annotations

import time
from functools import partial

# Partials, since freezegun replaces the functions of ``time`` wherever a module has one of them as an attribute.
monotonic = partial(time.monotonic)
perf_counter = partial(time.perf_counter)
sleep = partial(time.sleep)
wall = partial(time.time)  # noqa: TID251  # the wall clock, for those who may read it
