"""Ranks that bring tensors of other sizes to one call, which gloo lets wait for ever."""

from __future__ import annotations

import re

import pytest

TESTS = """
import pytest
import torch
import torch.distributed as dist

three = pytest.mark.world_size(3)

def length(world):
    return 5 if world.rank == 2 else 6

@three
def test_reduce(world):
    dist.all_reduce(torch.ones(length(world)))

@three
def test_handle(world):
    work = dist.all_reduce(torch.ones(length(world)), async_op=True)
    work.wait()

@three
def test_scatter(world):
    dist.reduce_scatter_tensor(torch.ones(length(world)), torch.ones(3 * length(world)))

@three
def test_to_last(world):
    dist.reduce(torch.ones(length(world)), 2)
"""

PROVEN = {
    "test_reduce": r"all_reduce #1 .* with float32\[5\] instead of float32\[6\] at test_sizes.py:13",
    "test_handle": r"all_reduce #1 .* with float32\[5\] instead of float32\[6\] at test_sizes.py:17",
    "test_scatter": r"reduce_scatter_tensor #1 .* with float32\[15\] instead of float32\[18\] at test_sizes.py:22",
    "test_to_last": r"reduce #1 .* with float32\[5\] instead of float32\[6\]",
}


@pytest.fixture
def suite(lab):
    return lab.write(test_sizes=TESTS)


def messages(ended):
    return {test.test.nodeid.rpartition("::")[2].partition("[")[0]: test.final for test in ended.run.tests}


def test_sizes_are_proven_with_shapes_and_lines(suite):
    found = messages(suite.run("run", "test_sizes.py", "--isolation", "fresh"))

    assert found.keys() == PROVEN.keys()
    for name, words in PROVEN.items():
        assert "deadlock: rank" in found[name].message, name
        assert re.search(words, found[name].message), found[name].message


def test_a_rank_that_has_finished_is_asked_without_proofs(suite):
    selected = "test_reduce or test_handle"
    ended = suite.run("run", "test_sizes.py", "-k", selected, "--deadlock", "off", "--timeout", "4")

    for result in messages(ended).values():
        assert "never joined" not in result.message
        assert re.search(r"ranks disagree at collective #\d of group default: .*float32\[5\]", result.message)
