"""Base classes of the suite's own, of DeepSpeed's kind: a subclass says how many ranks run its tests, or its fixture.

An instance is called with pytest's request. It launches its ranks once for each of its sizes, and each rank runs ``_dist_run``.
"""

import contextlib
import inspect
import multiprocessing
import os
import tempfile

import pytest
import torch.distributed as dist

multiprocessing.set_forkserver_preload(["torch.distributed"])


class DistributedExec:
    """Something that runs in ranks: ``run``, with the fixtures that it names."""

    world_size = 2
    """How many ranks, or a list: first so many, then so many."""
    reuse_dist_env = False
    """Whether the ranks live on, for the next test of that many ranks."""
    exec_timeout = 600
    _pools = {}
    """World size -> ranks that live on."""

    def run(self, **arguments):
        raise NotImplementedError

    def __call__(self, request):
        self._launch_each(self.run, self.world_size, request)

    def _launch_each(self, function, sizes, request):
        names = inspect.signature(function).parameters
        self._arguments = {name: request.getfixturevalue(name) for name in names}
        for size in sizes if isinstance(sizes, list) else [sizes]:
            with tempfile.TemporaryDirectory() as folder:
                self._launch_procs(size, f"file://{folder}/store")

    def _launch_procs(self, num_procs, init_method):
        pool = self._pools.get(num_procs) if self.reuse_dist_env else None
        pool = pool or multiprocessing.get_context("forkserver").Pool(num_procs)
        if self.reuse_dist_env:
            self._pools[num_procs] = pool
        tasks = [(rank, num_procs, None, init_method) for rank in range(num_procs)]
        try:
            skips = pool.starmap_async(self._dist_run, tasks, chunksize=1).get(self.exec_timeout)
        finally:
            if not self.reuse_dist_env:
                pool.terminate()
        if reasons := set(filter(None, skips)):
            pytest.skip(", ".join(reasons))

    def _dist_run(self, local_rank, num_procs, master_port, init_method):
        """In each rank; returns why its test skips, if it does."""
        if not dist.is_initialized():
            os.environ.update(RANK=str(local_rank), LOCAL_RANK=str(local_rank), WORLD_SIZE=str(num_procs))
            os.environ["MASTER_PORT"] = str(master_port)
            dist.init_process_group("gloo", init_method, rank=local_rank, world_size=num_procs)
        dist.barrier()  # so that no process of the pool takes the tasks of two ranks
        try:
            self.run(**self._arguments)
        except pytest.skip.Exception as skip:
            return skip.msg
        return None

    def _dist_destroy(self):
        with contextlib.suppress(ValueError):
            dist.destroy_process_group()


class DistributedTest(DistributedExec):
    """Base of test classes; the mark or the argument ``world_size`` of a test counts before that of its class."""

    is_dist_test = True

    def __call__(self, request):
        self._test = request.function.__name__
        mark = request.node.get_closest_marker("world_size")
        given = getattr(request.node, "callspec", None)
        asked = given.params.get("world_size", self.world_size) if given else self.world_size
        self._launch_each(getattr(self, self._test), mark.args[0] if mark else asked, request)

    def run(self, **arguments):
        getattr(self, self._test)(**arguments)


class DistributedFixture(DistributedExec):
    """Base of fixtures that run in ranks of their own, before those of the test: ``name = pytest.fixture(Class())``."""

    is_dist_fixture = True

    @property
    def __name__(self):
        return type(self).__name__
