"""Which of the devices that torch sees is a rank's own."""

from __future__ import annotations

import pytest
from rank_specs import rank_spec

from disttest.model import WorldShape


def spec(rank, devices, size=2):
    shape = WorldShape(size=size, backend="nccl", device="cuda")
    return rank_spec(rank=rank, shape=shape, devices=devices)


@pytest.mark.parametrize(
    ("rank", "devices", "seen", "index"),
    [
        (0, ("GPU-a", "GPU-b"), 2, 0),
        (1, ("GPU-a", "GPU-b"), 2, 1),
        (1, ("MIG-a", "MIG-b"), 1, 0),
        (1, (), 2, 1),
    ],
)
def test_each_rank_has_its_own(rank, devices, seen, index):
    assert index == spec(rank, devices).device_index(seen)


@pytest.mark.parametrize(
    ("rank", "devices", "seen", "words"),
    [
        (1, ("GPU-a", "GPU-b"), 1, "GPU-b is missing: torch sees 1 of the 2 GPUs of this world"),
        (1, ("MIG-a", "MIG-b"), 0, "MIG-b is missing: torch sees 0 of the 1 GPUs of this world"),
        (0, ("3",), 0, "GPU 3 is missing: torch sees 0 of the 1 GPUs of this world"),
        (0, (), 0, "GPU 0 is missing: torch sees 0 of the 1 GPUs of this world"),
    ],
)
def test_one_that_torch_does_not_see_is_named(rank, devices, seen, words):
    with pytest.raises(RuntimeError) as raised:
        spec(rank, devices).device_index(seen)

    assert f"{words}; disttest doctor says which GPUs work" == str(raised.value)


@pytest.mark.parametrize(
    ("size", "devices", "ranks"),
    [
        (2, ("GPU-a", "GPU-b"), (1, 1)),
        (2, ("GPU-a",), (2, 2)),
        (5, ("GPU-a", "GPU-b"), (3, 2, 3, 2, 3)),
        (2, ("MIG-a", "MIG-b"), (1, 1)),
        (2, (), (1, 1)),
    ],
)
def test_how_many_ranks_compute_on_a_gpu(size, devices, ranks):
    assert ranks == tuple(spec(rank, devices, size).ranks_on_gpu for rank in range(size))
