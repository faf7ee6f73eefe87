"""torch's own suite of 285 tests, ready to be collected: ``BACKEND`` and ``WORLD_SIZE`` say how it runs."""

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
    """Runs here as torch runs it: ``setUp`` starts the ranks, nothing else is overridden."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()
