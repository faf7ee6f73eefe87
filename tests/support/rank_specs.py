"""Specifications of ranks for unit tests, which start none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disttest.model import WorldShape
from disttest.options.run import resolve_options
from disttest.runtime.rank.rank_spec import RankSpec

_NOWHERE = Path("/nowhere")


def rank_spec(**changes: Any) -> RankSpec:
    """The specification of rank 0 of two over gloo, with these fields changed."""
    given: dict[str, Any] = {
        "rank": 0,
        "shape": WorldShape(size=2, backend="gloo", device="cpu"),
        "world_id": "w1",
        "world_pid": 1,
        "master_port": 0,
        "devices": (),
        **dict.fromkeys(("stacks", "questions", "phases", "scratch", "log"), _NOWHERE),
        "settings": resolve_options({}, environ={}).for_worlds(),
        "threads": 1,
    }
    return RankSpec(**{**given, **changes})
