"""The part in the controller: it collects as rank 0 does, and gives each test its world."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from disttest.model import WorldShape
from disttest.options.run import RunOptions
from disttest.plugins.spmd.hooks import SPMD
from disttest.runtime.controller.expand import rename
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.controller.wanted_worlds import OwnWorld
from disttest.runtime.rank.rank_spec import place_variables


def set_environment(size: str) -> None:
    """Set the variables of rank 0, except those of the rendezvous.

    Args:
        size: size of the world.
    """
    os.environ.update(place_variables(0, size))  # noqa: TID251


def world_of(options: RunOptions, host: TargetHost) -> OwnWorld:
    """Return the world of each test.

    Args:
        options: options of the run.
        host: the machine.
    """
    backend = next(iter(options.backend), host.default_backend())
    shape = WorldShape(size=SPMD.of(options)[0], backend=backend, device=host.device_for(backend))
    return OwnWorld(shape=shape, ranks_may_differ=True)


def name_worlds(items: Iterable[pytest.Item], shape: WorldShape) -> None:
    """Put the world into the ids of tests, as for marked tests; the names of the tests stay."""
    for item in items:
        nodeid, parameters = item.nodeid, getattr(getattr(item, "callspec", None), "id", "")
        base = nodeid.removesuffix(f"[{parameters}]") if parameters else nodeid
        label = f"{shape}-{parameters}" if parameters else str(shape)
        rename(item, f"{base}[{label}]", collected_as=nodeid)
