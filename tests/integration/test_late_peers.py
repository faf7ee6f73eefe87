"""A rank that is through with its group holds on to it while another one is still being connected."""

from __future__ import annotations

import pytest
from lab import Lab

from disttest.model import Outcome

LATE = """
    import os, select
    import torch.distributed as dist
    from {module} import MultiProcessTestCase
    from torch.testing._internal.distributed.fake_pg import _create_fake_pg

    met = []

    def connect(common, options):
        "In rank 1 it takes as long as rank 0 would need to be gone: which this connection does not survive."
        met.append(common.store)
        if common.group_rank == 1:
            first = os.pidfd_open(int(common.store.get("pid")))
            common.store.set("connecting", "")
            ended = select.select([first], [], [], 0.5)[0]
            assert not ended, "rank 0 has ended"
            assert not common.store.check(["destroyed"]), "rank 0 has destroyed its group"
        else:
            common.store.set("pid", str(os.getpid()))
            common.store.get("connecting")
        return _create_fake_pg(common, options)

    class TestLate(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def make(self):
            dist.Backend.register_backend("late", connect, extended_api=True, devices=["cpu"])
            store = dist.FileStore(self.file_name, 2)
            dist.init_process_group("late", rank=self.rank, world_size=2, store=store)

        def test_destroys(self):
            self.make()
            dist.destroy_process_group()
            met[0].set("destroyed", "")

        def test_ends(self):
            self.make()

    class TestLeaves(TestLate):
        destroy_pg_upon_exit = False
"""
OURS, TORCHS = "disttest.testing", "torch.testing._internal.common_distributed"


@pytest.mark.parametrize("module", [OURS, TORCHS])
def test_no_group_is_gone_while_a_rank_is_being_connected(lab: Lab, module: str) -> None:
    lab.write(test_late=LATE.format(module=module))

    ended = lab.pytest("test_late.py", "--disttest-host")

    found = {each.test.nodeid: (each.final.outcome, each.final.message) for each in ended.run.tests}
    assert 4 == len(found)
    assert {(Outcome.PASSED, "")} == set(found.values()), found
