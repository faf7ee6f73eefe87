"""Launcher mode (``--spmd N``): every test has N ranks, which collect it by themselves, as under ``torchrun -m pytest``.

The pytest process collects too, to know which tests there are: as rank 0 would, but without a place to meet. So what
depends on ``WORLD_SIZE`` (skips, parameters, what hooks deselect) is the same there, and a process group that is made at
import is an error of that file instead of a wait for ranks that do not come.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

import msgspec
import pytest

from disttest.model import WorldShape
from disttest.options.run import RunOptions
from disttest.runtime.controller.expand import rename
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.rank.rank_spec import place_variables


def collect_as_rank_0(known: argparse.Namespace) -> None:
    """Set what a rank finds in its environment, but for the rendezvous, in a process that collects for ranks.

    Args:
        known: what pytest was given.
    """
    asked: str = known.disttest_spmd or ""
    if not asked or known.disttest_rank or not (known.disttest_guarded or known.collectonly):
        return
    os.environ.update(place_variables(0, asked.partition(",")[0].strip()))  # noqa: TID251


def spmd_shape(options: RunOptions, host: TargetHost) -> WorldShape | None:
    """The world of a test that asks for none; None where tests say what they need."""
    if not options.spmd:
        return None
    backend = next(iter(options.backend), host.default_backend())
    return WorldShape(size=options.spmd[0], backend=backend, device=host.device_for(backend))


def name_worlds(items: Iterable[pytest.Item], shape: WorldShape) -> None:
    """Put the world into the ids of tests, as where it is marked; their names stay what the suite gave them."""
    for item in items:
        nodeid, parameters = item.nodeid, getattr(getattr(item, "callspec", None), "id", "")
        base = nodeid.removesuffix(f"[{parameters}]") if parameters else nodeid
        label = f"{shape}-{parameters}" if parameters else str(shape)
        rename(item, f"{base}[{label}]", collected_as=nodeid)


def without_spmd(options: RunOptions) -> RunOptions:
    """The options under plain pytest, where a project's setting changes nothing: the command sets ranks up."""
    return msgspec.structs.replace(options, spmd=())
