"""Gloo's message loops are batch work in every rank, whoever has made the group; the threads that compute are what they were."""

from __future__ import annotations

import pytest
from lab import Lab

from disttest.model import Outcome

POLICIES = """
    import os

    import torch.distributed as dist

    def policies():
        found = {}
        for tid in os.listdir("/proc/self/task"):
            name = open(f"/proc/self/task/{tid}/comm").read().strip()
            name = name if name in ("gloo_tcp_loop", "pt_gloo_runloop") else "others"
            found.setdefault(name, []).append(os.sched_getscheduler(int(tid)))
        return found

    def assert_calm(groups):
        dist.barrier()  # a thread has its name once it runs
        found = policies()
        loops = found.pop("gloo_tcp_loop")
        assert len(loops) >= groups and set(loops) == {os.SCHED_BATCH}, loops
        assert found["pt_gloo_runloop"]
        assert {policy for each in found.values() for policy in each} == {os.SCHED_OTHER}, found
"""
WORLD = """
    import pytest
    import torch.distributed as dist
    from policies import assert_calm

    @pytest.mark.world_size(2)
    def test_of_the_world(world):
        assert_calm(1)

    @pytest.mark.world_size(2)
    def test_of_the_test(world):
        group = dist.new_group([0, 1])
        {assert_calm}
"""
CLASS = """
    import torch.distributed as dist
    from policies import assert_calm
    from disttest.testing import MultiProcessTestCase

    class TestCalm(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_of_the_class(self):
            store = dist.FileStore(self.file_name, 2)
            dist.init_process_group("gloo", rank=self.rank, world_size=2, store=store)
            assert_calm(1)
"""


def outcomes(lab: Lab, *words: str) -> dict[str, tuple[Outcome, str]]:
    ended = lab.pytest(*words)
    return {each.test.name: (each.final.outcome, each.final.message) for each in ended.run.tests}


@pytest.mark.parametrize("isolation", ["warm", "fresh"])
def test_in_worlds(lab: Lab, isolation: str) -> None:
    lab.write(policies=POLICIES, test_calm=WORLD.format(assert_calm="assert_calm(2)"))

    found = outcomes(lab, "test_calm.py", f"--disttest-isolation={isolation}")

    assert 2 == len(found)
    assert {(Outcome.PASSED, "")} == set(found.values()), found


def test_the_group_of_the_world_where_nothing_is_observed(lab: Lab) -> None:
    lab.write(policies=POLICIES, test_calm=WORLD.format(assert_calm=""))

    found = outcomes(lab, "test_calm.py", "--disttest-deadlock=off")

    assert 2 == len(found)
    assert {(Outcome.PASSED, "")} == set(found.values()), found


def test_in_ranks_of_a_class(lab: Lab) -> None:
    lab.write(policies=POLICIES, test_calm=CLASS)

    found = outcomes(lab, "test_calm.py", "--disttest-host")

    assert [(Outcome.PASSED, "")] == list(found.values()), found


def test_a_rank_whose_policy_the_user_has_chosen_keeps_it(lab: Lab) -> None:
    keeps = "assert {os.SCHED_IDLE} == {policy for each in policies().values() for policy in each}"
    lab.write(
        policies=POLICIES,
        test_calm=f"""
            import os
            import pytest
            from policies import policies

            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

            @pytest.mark.world_size(2)
            def test_idle(world):
                {keeps}
        """,
    )

    found = outcomes(lab, "test_calm.py")

    assert [(Outcome.PASSED, "")] == list(found.values()), found
