"""The clocks and ``sleep``, bound before any test module or conftest is imported.

Tests replace them (freezegun, ``monkeypatch.setattr(time, "sleep", …)``). Time limits must hold all the same.
"""

from __future__ import annotations

import time
from functools import partial

# Partials: freezegun replaces the functions of ``time`` in every module that has one of them as an attribute.
monotonic = partial(time.monotonic)
perf_counter = partial(time.perf_counter)
sleep = partial(time.sleep)
wall = partial(time.time)  # noqa: TID251  # the only binding of the wall clock outside of the journal
