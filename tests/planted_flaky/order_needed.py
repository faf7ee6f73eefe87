"""Tests that need another test, or no earlier run of themselves."""

import os

import pytest

MADE = {}
RUNS = []


def test_that_prepares():
    MADE["table"] = [1, 2, 3]
    os.environ["PLANTED_FLAKY"] = "ready"


@pytest.mark.world_size(2)
def test_that_prepares_ranks(world):
    MADE["rank"] = world.rank


def test_table():
    assert MADE["table"] == [1, 2, 3]


@pytest.mark.world_size(2)
def test_rank(world):
    assert MADE["rank"] == world.rank


def test_only_once():
    RUNS.append(1)
    assert len(RUNS) == 1


@pytest.mark.world_size(2)
def test_only_once_in_ranks(world):
    RUNS.append(1)
    assert len(RUNS) == 1


def test_every_second_time():
    RUNS.append(2)
    assert len(RUNS) % 2
