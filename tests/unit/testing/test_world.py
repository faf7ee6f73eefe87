"""The world as a test sees it."""

from __future__ import annotations

from pathlib import Path

from hypothesis.vendor.pretty import pretty

from disttest.testing import World


def test_an_example_of_hypothesis_shows_it_in_short():
    world = World(rank=1, size=2, local_rank=1, backend="gloo", device_type="cpu", scratch=Path)

    assert pretty(world) == repr(world) == "World(rank=1, size=2, backend='gloo')"
