"""A backend that torch does not bring: registered at run time, by a plugin or by a conftest."""

from __future__ import annotations

import pytest
from lab import Lab

from disttest.extras.shards.shard_plan import decode_plan
from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

ECHO = """
    import torch.distributed as dist

    def make(store, rank, size, timeout):
        return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)

    dist.Backend.register_backend("echo", make, devices=["cpu"])
"""
TESTS = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    def test_reduces(world):
        assert world.backend == dist.get_backend() == "echo"
        assert world.device.type == "cpu"
        ours = torch.ones(1)
        dist.all_reduce(ours)
        assert ours.item() == 2

    @pytest.mark.backend("gloo")
    def test_for_another():
        pass

    def test_dies(world):
        if world.rank == 1:
            os._exit(3)
        dist.barrier()
"""


def test_a_backend_of_a_conftest_runs_and_is_judged_as_any_other(lab: Lab) -> None:
    ended = lab.write(conftest=ECHO, test_echo=TESTS).run(".", "--backend", "echo", "--device", "cpu")

    assert Outcome.PASSED == ended.result("test_reduces[2xecho]").outcome, ended.output
    assert Outcome.SKIPPED == ended.result("test_for_another").outcome
    died = ended.result("test_dies[2xecho]")
    assert (Outcome.ERROR, 1) == (died.outcome, died.culprit)
    assert "--backend echo" in ended.output


def test_the_suites_run_over_a_backend_of_a_plugin(lab: Lab) -> None:
    lab.write(echo_backend=ECHO)
    ended = lab.run(
        "smoke", "--backend", "echo", "--device", "cpu", "--world-sizes", "2", "--", "-p", "echo_backend",
        PYTHONPATH=str(lab.folder),
    )  # fmt: skip

    assert ended.exit_code == 0, ended.output
    worlds = {test.test.world.backend for test in ended.run.tests if test.test.world}
    assert {"echo"} == worlds
    assert {Outcome.PASSED} == {test.final.outcome for test in ended.run.tests}


def test_it_computes_where_it_was_registered_for_also_on_runners_with_gpus(lab: Lab) -> None:
    lab.write(conftest=ECHO, test_echo=TESTS)
    planned = lab.run("plan", ".", "--backend", "echo", "--device", "cuda", "--shards", "1")

    assert planned.exit_code == 0, planned.output
    (shard,) = decode_plan((lab.folder / "plan.json").read_bytes(), "plan.json").shards
    assert {"cpu"} == {test.world.device for test in shard.tests if test.world}


def test_a_name_that_nobody_has_registered_is_refused(lab: Lab) -> None:
    ended = lab.write(test_echo=TESTS).run(".", "--backend", "echo", "--device", "cpu")

    assert ended.exit_code == 4, ended.output
    assert "--backend echo: the installed torch has no such backend; it has gloo" in ended.output


def test_a_plan_for_runners_with_gpus_needs_none_here(lab: Lab) -> None:
    """Nor is this machine's torch asked about them."""
    lab.write(test_any="import pytest\n\n@pytest.mark.world_size(2)\ndef test_x(world):\n    pass\n")
    planned = lab.run("plan", ".", "--device", "cuda", "--shards", "1")

    assert planned.exit_code == 0, planned.output
    (shard,) = decode_plan((lab.folder / "plan.json").read_bytes(), "plan.json").shards
    assert [("nccl", "cuda")] == [(t.world.backend, t.world.device) for t in shard.tests if t.world]
