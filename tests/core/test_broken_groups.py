"""A test in a warm world that breaks a process group is named, and the next test does not meet the group."""

import re

import pytest

from disttest.model import Outcome

SUITE = """
    import os
    import time
    from datetime import timedelta

    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    pytestmark = pytest.mark.world_size(2)

    def group_for_test():
        return dist.new_group([0, 1], timeout=timedelta(seconds=100))

    def barrier_of_files(folder, rank):
        (folder / str(rank)).touch()
        while len(list(folder.iterdir())) < 2:
            time.sleep(0.01)

    def test_a_receive_times_out(world, world_tmp_path):
        if world.rank == 0:
            with pytest.raises(RuntimeError):
                dist.irecv(torch.ones(1), 1).wait(timedelta(seconds=0.2))
        barrier_of_files(world_tmp_path, world.rank)

    def test_b_monitored_barrier(world, world_tmp_path):
        if world.rank == 0:
            with pytest.raises(RuntimeError):
                dist.monitored_barrier(timeout=timedelta(seconds=0.2))
        barrier_of_files(world_tmp_path, world.rank)

    def test_c_collective_times_out(world, world_tmp_path):
        if world.rank == 0:
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=0.2))
        barrier_of_files(world_tmp_path, world.rank)

    def test_d_send_is_never_received(world):
        if world.rank == 0:
            dist.isend(torch.ones(1), 1, tag=7)

    def test_e_receive_is_never_sent(world):
        if world.rank == 0:
            dist.irecv(torch.ones(1), 1, tag=7)

    def test_f_collective_of_one_rank(world):
        if world.rank == 1:
            dist.all_reduce(torch.ones(1), async_op=True)

    def test_g_abort(world):
        dist.group.WORLD.abort()

    def test_h_wait_again(world, world_tmp_path):
        if world.rank == 0:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            with pytest.raises(RuntimeError):
                work.wait(timedelta(seconds=0.2))
        barrier_of_files(world_tmp_path, world.rank)
        if world.rank == 1:
            dist.all_reduce(torch.ones(1))
        else:
            work.wait()
        print("pid", os.getpid())

    def test_j_own_group(world, world_tmp_path):
        own = group_for_test()
        if world.rank == 0:
            with pytest.raises(RuntimeError):
                dist.irecv(torch.ones(1), 1, group=own).wait(timedelta(seconds=0.2))
        barrier_of_files(world_tmp_path, world.rank)
        dist.destroy_process_group(own)
        print("pid", os.getpid())

    def test_k_same_world_after_own_group(world):
        dist.barrier()
        print("pid", os.getpid())

    def test_l_limits(world):
        c10d._set_pg_timeout(timedelta(seconds=3), dist.group.WORLD)
        c10d._get_default_store().set_timeout(timedelta(seconds=4))
        c10d.default_pg_timeout = timedelta(seconds=5)

    def test_m_limits_are_back(world):
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.options._timeout > timedelta(seconds=100)
        assert c10d._get_default_store().timeout > timedelta(seconds=100)
        assert c10d.default_pg_timeout > timedelta(seconds=100)
        print("pid", os.getpid())

    def test_n_all_in_order(world):
        x = torch.ones(1)
        work = dist.irecv(x) if world.rank else dist.isend(x, 1)
        ready = dist.barrier(async_op=True)
        late = dist.all_reduce(x.clone(), async_op=True)
        work.wait()
        ready.wait()
        late.wait()
        print("pid", os.getpid())

    def test_o_same_world_after_all_in_order(world):
        dist.barrier()
        print("pid", os.getpid())

    @pytest.fixture(scope="module")
    def groups():
        return {}

    @pytest.fixture
    def kept(world, groups):
        if not groups:
            groups["kept"] = group_for_test()
        return groups["kept"]

    CALLS = {
        "gather": lambda out, x, group: dist.all_gather(out, x, group=group, async_op=True),
        "broadcast": lambda out, x, group: dist.broadcast(x, 1, group=group, async_op=True),
        "exchange": lambda out, x, group: dist.all_to_all(out, [x, x], group=group, async_op=True),
        "barrier": lambda out, x, group: dist.barrier(group=group, async_op=True),
    }

    @pytest.mark.parametrize("what", ["breaks", "innocent"])
    @pytest.mark.parametrize("call", CALLS)
    def test_p_group_of_a_fixture(world, kept, call, what, world_tmp_path):
        if what == "innocent":
            return dist.barrier(group=kept)
        if world.rank == 0:
            work = CALLS[call]([torch.zeros(1), torch.zeros(1)], torch.ones(1), kept)
            with pytest.raises(RuntimeError):
                work.wait(timedelta(seconds=0.2))
        barrier_of_files(world_tmp_path, world.rank)
"""
CULPRITS = {
    "test_a_receive_times_out": r"rank 0 leaked recv at test_groups.py:\d+, which failed in group default",
    "test_b_monitored_barrier": r"rank 0 leaked monitored_barrier at test_groups.py:\d+, which failed in group default",
    "test_c_collective_times_out": r"rank 0 leaked allreduce at test_groups.py:\d+, which failed in group default",
    "test_g_abort": r"ranks 0, 1 leaked group default, which was aborted",
}
UNMATCHED = (
    "test_d_send_is_never_received",
    "test_e_receive_is_never_sent",
    "test_f_collective_of_one_rank",
)
IN_ONE_WORLD = (
    "test_h_wait_again",
    "test_j_own_group",
    "test_k_same_world_after_own_group",
    "test_m_limits_are_back",
    "test_n_all_in_order",
    "test_o_same_world_after_all_in_order",
)


@pytest.fixture(scope="module")
def ended(module_lab):
    return module_lab.write(test_groups=SUITE).run("test_groups.py")


def test_no_test_suffers_from_the_one_before_it(ended):
    assert not ended.run.bad, ended.output
    assert {Outcome.PASSED} == {test.final.outcome for test in ended.run.tests}


@pytest.mark.parametrize("name", CULPRITS)
def test_the_test_that_broke_a_group_is_named(ended, name):
    notes = "\n".join(ended.result(name).notes)

    assert re.search(CULPRITS[name], notes), notes


@pytest.mark.parametrize("name", UNMATCHED)
def test_calls_that_only_one_rank_issues_are_findings_of_the_sanitizer(ended, name):
    assert ["order"] == [finding.finder for finding in ended.result(name).findings]


@pytest.mark.parametrize(
    ("call", "op"),
    [("gather", "allgather"), ("broadcast", "broadcast"), ("exchange", "alltoall"), ("barrier", "barrier")],
)
def test_a_group_that_a_fixture_keeps_is_made_again(ended, call, op):
    named = ended.result(f"test_p_group_of_a_fixture[2xgloo-{call}-breaks]")

    assert re.search(
        rf"rank 0 leaked {op} at test_groups.py:\d+, which failed in group \d", "\n".join(named.notes)
    )
    assert named.world_id != ended.result(f"test_p_group_of_a_fixture[2xgloo-{call}-innocent]").world_id


def test_limits_are_named_and_put_back(ended):
    notes = ended.result("test_l_limits").notes

    assert any(note.startswith("ranks 0, 1 leaked time limit of process group default: ") for note in notes)
    assert any("time limit of new groups" in note for note in notes)


def test_a_world_whose_groups_are_sound_goes_on(ended):
    pids = {ended.log(name, 0).split("pid ")[1].split()[0] for name in IN_ONE_WORLD}

    assert 1 == len(pids)
    assert () == ended.result("test_n_all_in_order").notes
