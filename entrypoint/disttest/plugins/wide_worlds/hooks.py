"""Hooks of large worlds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.model import WorldShape

MOST_CONNECTED = 64
"""Ranks of the largest world that gloo connects completely when it starts.

Both ways of connecting take the same CPU time up to 64 ranks: 4.8 s for the whole world. At 128 ranks the mesh takes 12.4 s
instead of 9.5 s (`python bench/wide.py --sizes 64,128 --lazy 1`). At 256 ranks a run takes 38 s instead of 21.5 s.
"""


@hookimpl
def disttest_rank_environment(shape: WorldShape) -> Mapping[str, str]:
    """Have gloo connect two ranks of a large world when one of them first calls the other."""
    # torch 2.8 and later: https://github.com/pytorch/pytorch/pull/150801
    return {"TORCH_GLOO_LAZY_INIT": "1"} if shape.size > MOST_CONNECTED else {}
