"""Stand-ins for files of torch's own suite, and of others: what they do that ours never did, each case by a source of ours.

Threads that a file starts when it is imported have theirs in tests/integration/test_fork_hazards.py.
"""

# --- one file, to be started in every way that its authors have

TORCH_FILE = """
    import os
    from multiprocessing import parent_process

    from beside import VALUE
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.common_utils import run_tests

    class TestEntry(MultiProcessTestCase):
        world_size = 1

        def setUp(self):
            if "test_other" in self.id():
                self.skipTest("it takes seconds to start its rank")
            super().setUp()
            self._spawn_processes()

        def test_start(self):
            from late import LATER

            assert (VALUE, LATER) == (1, 2)
            with open(os.environ["TRACE"], "a") as trace:
                print("spawned" if parent_process() else "forked", file=trace)

        def test_other(self):
            pass

    if __name__ == "__main__":
        run_tests()
"""
# What the conftest of torch's repository does for ``python FILE --use-pytest``, as far as it matters here.
MAIN_MODULE = """
    import sys
    import pytest

    def pytest_addoption(parser):
        parser.addoption("--use-main-module", action="store_true")

    def pytest_pycollect_makemodule(module_path, parent):
        if parent.config.getoption("--use-main-module"):
            return MainModule.from_parent(parent, path=module_path)

    class MainModule(pytest.Module):
        def _getobj(self):
            return sys.modules["__main__"]
"""
DRIVER = """
    import subprocess
    import sys

    words = ["test_entry.py", "-vv", "-rfEX", "-p", "no:xdist", "--use-pytest", "-x", "-k", "test_start"]
    sys.exit(subprocess.run([sys.executable, "-bb", *words]).returncode)
"""
THREADS = """
    import os
    import threadpoolctl
    import torch

    def ours():
        return {name: text for name, text in os.environ.items() if name.endswith("_NUM_THREADS")}

    print("THREADS AT IMPORT", torch.get_num_threads(), ours())

    def test_threads():
        pools = {(pool["user_api"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()}
        asked = {name: text for name, text in os.environ.items() if name.endswith("_CHECK")}
        print("THREADS", torch.get_num_threads(), sorted(pools), ours(), asked)
"""
FAILS = """
    import pytest

    @pytest.mark.world_size(1)
    def test_fails(world):
        print("the last words")
        raise AssertionError
"""

# --- files that are run together

HEAD = """
    import sys, os, logging
    import torch
    from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiProcessTestCase

    class Ranks(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()
"""
FILES = {
    "test_handlers": HEAD
    + """
    apart = logging.getLogger("own-of-a-library")
    apart.propagate = False
    apart.addHandler(logging.NullHandler())

    class TestHandlers(Ranks):
        def test_the_logger_has_what_its_library_gave_it(self):
            self.assertEqual([logging.NullHandler], [type(each) for each in apart.handlers])
    """,
    "test_devices": HEAD
    + """
    class TestDevices(Ranks):
        @property
        def world_size(self):
            return min(4, torch.cuda.device_count())

        def test_never_runs(self):
            raise AssertionError("here neither")
    """,
    "test_leaves": """
    import sys
    print("no such library,\\nnothing to test")
    sys.exit(0)
    """,
    "test_leaves_with_3": "import sys\nprint('before')\nsys.exit(3)\n",
    "test_leaves_at_once": "import os\nif os.fork() == 0:\n    os._exit(0)\nos._exit(4)\n",
    "test_bases": HEAD
    + """
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.testing._internal.distributed._tensor import common_dtensor as bases

    def shards(case):
        mesh = case.build_device_mesh()
        whole = torch.arange(8.0)
        split = distribute_tensor(whole, mesh, [Shard(0)])
        case.assertEqual(split.to_local().shape[0], 8 // case.world_size)
        case.assertEqual(split.redistribute(mesh, [Replicate()]).to_local(), whole)

    class TestContinuous(MultiProcContinuousTest):
        world_size = 2

        @classmethod
        def backend_str(cls):
            return "gloo"

        def test_sum(self):
            one = torch.ones(1)
            dist.all_reduce(one)
            self.assertEqual(one.item(), 2)

        def test_wrong(self):
            self.assertEqual(self.rank, 0)

        def test_after_it(self):
            dist.barrier()

    class TestDTensorContinuous(bases.DTensorContinuousTestBase):
        world_size = 2

        def test_shards(self):
            shards(self)

        def test_wrong(self):
            self.assertEqual(self.rank, 1)

    class TestLocalContinuous(bases.LocalDTensorContinuousTestBase):
        world_size = 2

        def test_shards(self):
            with self._get_local_tensor_mode():
                shards(self)

        def test_wrong(self):
            self.assertEqual(1, 2)

    class TestTensors(bases.DTensorTestBase):
        world_size = 2

        @bases.with_comms
        def test_shards(self):
            shards(self)

        @bases.with_comms
        def test_wrong(self):
            self.assertEqual(1, 2)

    TestTensorsLocal = bases.create_local_tensor_test_class(TestTensors)
    """,
}

# --- a test that a plugin makes copies of

COPIED = """
    import os
    import unittest
    from pathlib import Path

    from disttest.testing import MultiProcessTestCase

    class TestRanks(MultiProcessTestCase):
        world_size = 1

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_counts(self):
            with open(os.environ["TRACE"], "a") as trace:
                print("ran", file=trace)
"""
