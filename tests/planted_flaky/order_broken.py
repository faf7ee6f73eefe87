"""Tests that another test of the file breaks, in the processes that they share."""

import decimal
import os
import string

import pytest

CACHE = {}
ROUNDS = []


class Settings:
    limit = 10


def test_that_breaks_others():
    CACHE["size"] = 3
    Settings.limit = 1
    decimal.getcontext().prec = 3
    string.capwords = None


@pytest.mark.world_size(2)
def test_that_breaks_ranks(world):
    ROUNDS.append(world.rank)


def test_cache():
    assert not CACHE


def test_settings():
    assert Settings.limit == 10


def test_precision():
    assert str(decimal.Decimal(1) / 8) == "0.125" and decimal.getcontext().prec == 28


def test_module():
    assert string.capwords("a b") == "A B"


@pytest.mark.world_size(2)
def test_ranks(world):
    assert not ROUNDS, os.getpid()
