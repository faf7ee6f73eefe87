"""What files of torch's own suite, and of others, do that ours never did: each case by a stand-in of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from disttest.model import Outcome

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


@pytest.fixture(scope="module")
def run(module_lab):
    return module_lab.write(**FILES).run(".", "--timeout", "60")


def test_a_rank_sees_no_handler_of_pytest(run):
    assert run.result("test_the_logger_has_what_its_library_gave_it").outcome is Outcome.PASSED, run.output


VACUOUS = "1 tests that torch passes vacuously here: test_devices.py::TestDevices::test_never_runs"


def test_a_number_of_ranks_that_counts_no_device_is_a_skip_and_told_in_every_report(run):
    result = run.result("test_never_runs")

    assert (Outcome.SKIPPED, Outcome.PASSED) == (result.outcome, result.torch_outcome)
    assert result.message.startswith("needs an accelerator")
    assert ["test_never_runs"] == [test.test.name for test in run.run.vacuous]
    assert VACUOUS in run.run.notes
    for name in ("summary.md", "report.html", "results.json"):
        assert "passes vacuously here" in (run.results / name).read_text().replace("\\_", "_"), name
    assert "passes vacuously here" in run.output


def test_torchs_rules_pass_it(module_lab, run):
    ended = module_lab.pytest(
        "test_devices.py", "--disttest-host", "--disttest-verdict=torch", results="lenient"
    )

    assert (0, Outcome.PASSED) == (ended.exit_code, ended.result("test_never_runs").outcome), ended.output


def test_a_file_that_leaves_at_import_is_its_own_and_the_others_run(run):
    errors = {error.nodeid: error.message for error in run.run.collection_errors}

    assert 2 == run.exit_code
    assert {"test_leaves_with_3.py", "test_leaves_at_once.py"} == errors.keys()
    assert "test_leaves_with_3.py called sys.exit(3) while it was imported" in errors["test_leaves_with_3.py"]
    assert "before" in errors["test_leaves_with_3.py"]
    assert "test_leaves_at_once.py called os._exit(4)" in errors["test_leaves_at_once.py"]
    skip = "test_leaves.py is skipped: it exited with code 0 while it was imported: no such library, nothing to test"
    assert skip in run.run.notes
    assert "2" == run.junit().get("errors")


def test_newer_bases_run_their_ranks_and_tell_what_is_wrong(run):
    outcomes = {
        test.test.nodeid.partition("::")[2]: test.final.outcome
        for test in run.run.tests
        if "test_bases" in test.test.nodeid
    }
    good = {name for name, outcome in outcomes.items() if outcome is Outcome.PASSED}

    assert 11 == len(outcomes)
    assert {name for name in outcomes if not name.endswith("_wrong")} == good, run.output


def test_who_does_not_ask_gets_what_pytest_makes_of_it(lab):
    lab.write(test_leaves=FILES["test_leaves"])
    seen = [
        subprocess.run(
            [sys.executable, "-m", "pytest", *words, "test_leaves.py"],
            cwd=lab.folder,
            env=lab.environ,
            capture_output=True,
            check=False,
        ).returncode
        for words in ((), ("-p", "no:disttest"))
    ]

    assert seen[0] == seen[1] == 3


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


def flakefinder() -> str:
    """A folder with the real plugin: in the environment of the tests it would repeat every other test."""
    folder = Path.home() / ".cache" / "disttest" / "plugins-flakefinder-1.1.0"
    if not folder.exists():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(fresh)]
        subprocess.run([*pip, "pytest-flakefinder==1.1.0"], check=True, capture_output=True, timeout=120)
        fresh.rename(folder)
    return str(folder)


def test_each_copy_of_a_test_runs_under_an_id_of_its_own(lab):
    trace = lab.folder / "trace"
    path = os.pathsep.join([lab.environ["PYTHONPATH"], flakefinder()])
    options = ("--", "--flake-finder", "--flake-runs=4")
    ended = lab.write(test_copied=COPIED).run("test_copied.py", *options, PYTHONPATH=path, TRACE=str(trace))
    ids = [test.test.nodeid.partition("::")[2] for test in ended.run.tests]

    assert 0 == ended.exit_code, ended.output
    assert ["TestRanks::test_counts", *(f"TestRanks::test_counts#{number}" for number in (2, 3, 4))] == ids
    assert 4 == len(trace.read_text().split())
    results = json.loads((ended.results / "results.json").read_text())
    assert 4 == len(results["tests"])
