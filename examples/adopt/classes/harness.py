"""A base class of the suite's own: a subclass says how many ranks its tests run in, and whether these are kept."""

import multiprocessing
import os
import tempfile

import torch.distributed as dist

_pools = {}
"""World size -> ranks that live on."""


class DistributedTest:
    """Base of the suite's test classes."""

    is_dist_test = True
    world_size = 2
    reuse_dist_env = False
    """Whether the ranks of one test are those of the next, too."""
    limit_s = 600

    def launch(self, function, arguments):
        """Run a test in each rank; the first failure of a rank is raised here."""
        pool = _pools.get(self.world_size) or self._start()
        try:
            tasks = [(function, arguments)] * self.world_size
            pool.starmap_async(run_test, tasks, chunksize=1).get(self.limit_s)
        except BaseException:
            self._end()
            raise
        if not self.reuse_dist_env:
            self._end()

    def _start(self):
        context = multiprocessing.get_context("forkserver")
        file = f"{tempfile.mkdtemp()}/store"
        pool = _pools[self.world_size] = context.Pool(self.world_size)
        joins = [(rank, self.world_size, file) for rank in range(self.world_size)]
        pool.starmap(join_group, joins, chunksize=1)
        return pool

    def _end(self):
        pool = _pools.pop(self.world_size, None)
        if pool is not None:
            pool.terminate()


def join_group(rank, size, file):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)


def run_test(function, arguments):
    dist.barrier()  # so that no worker takes two tasks
    function(**arguments)
