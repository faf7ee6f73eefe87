"""torch's own suite of 285 tests, ready to be collected: ``BACKEND`` and ``WORLD_SIZE`` say how it runs."""

import os

from torch import nn
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
    """Runs here as torch runs it: ``setUp`` starts the ranks, nothing else is overridden."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()


CORNER = 32
"""Pixels of an image that are convolved on emulated GPUs. One test has images of a million: minutes of a CPU, milliseconds
of a GPU, and what it tests is how ranks join that have different numbers of them."""


def _of_a_corner(convolve):
    return lambda self, images: convolve(self, images[..., :CORNER, :CORNER])


if os.environ["BACKEND"] == "nccl":
    nn.Conv2d.forward = _of_a_corner(nn.Conv2d.forward)
