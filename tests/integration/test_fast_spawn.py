"""``--fast-spawn``: spawned processes of ordinary tests are forks of a clean process, and behave as spawned ones."""

import pytest
from lab import Lab

from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

SUITE = """
    import multiprocessing
    import os
    import random
    import signal
    import sys
    import time
    from pathlib import Path

    import numpy
    import pytest
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    STATE = []
    SPAWN = multiprocessing.get_context("spawn")

    def is_forked_by_a_server():
        return b"multiprocessing.forkserver" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()

    def looks_fresh(rank, answers):
        print(f"rank {rank} speaks", flush=True)
        answers.put(
            {
                "forked": is_forked_by_a_server(),
                "state": STATE,
                "environ": os.environ.get("MASTER_PORT"),
                "gone": os.environ.get("GONE"),
                "parent": multiprocessing.parent_process().pid,
                "alive": multiprocessing.parent_process().is_alive(),
                "threads": torch.get_num_threads(),
                "random": (random.random(), numpy.random.random()),
                "umask": os.umask(0),
                "imported_first": "torch" in sys.modules,
            }
        )

    @pytest.fixture
    def port(monkeypatch):
        STATE.append("the parent's")
        monkeypatch.setenv("GONE", "x")
        before = os.umask(0o027)
        yield
        os.umask(before)

    @pytest.mark.parametrize("threads", ["1", None])  # the server of the last one serves all that follow
    def test_is_like_a_new_interpreter(monkeypatch, port, threads):
        if threads is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
        for number in ("1", "2"):
            monkeypatch.setenv("MASTER_PORT", number)
            answers = SPAWN.SimpleQueue()
            mp.spawn(looks_fresh, args=(answers,), nprocs=2)
            told = [answers.get() for _ in range(2)]
            for each in told:
                assert each.pop("forked")
                assert each.pop("alive")
                assert each.pop("threads") == 1 or threads is None
            randoms = [each.pop("random") for each in told]
            assert len({number for pair in randoms for number in pair}) == 4, randoms
            expected = {
                "state": [],
                "environ": number,
                "gone": "x" if number == "1" else None,
                "parent": os.getpid(),
                "umask": 0o027,
                "imported_first": True,
            }
            assert told == [expected, expected]
            monkeypatch.delenv("GONE", raising=False)

    def raises(rank):
        if rank == 1:
            raise ValueError("rank 1 is wrong")

    def test_raises():
        with pytest.raises(mp.ProcessRaisedException, match="ValueError: rank 1 is wrong"):
            mp.spawn(raises, nprocs=2)

    def crashes(rank):
        if rank == 1:
            signal.raise_signal(signal.SIGSEGV)
        time.sleep(600)

    def test_crashes():
        with pytest.raises(mp.ProcessExitedException, match="process 1 terminated with signal SIGSEGV"):
            mp.spawn(crashes, nprocs=2)

    def exits(code):
        sys.exit(code)

    def test_exit_codes():
        for code in (0, 3):
            process = SPAWN.Process(target=exits, args=(code,))
            process.start()
            process.join()
            assert process.exitcode == code
        process = SPAWN.Process(target=time.sleep, args=(600,))
        process.start()
        assert process.exitcode is None and process.is_alive()
        process.terminate()
        process.join()
        assert process.exitcode == -signal.SIGTERM

    left = []

    def test_leaves_one():
        process = SPAWN.Process(target=time.sleep, args=(600,))
        process.start()
        left.append(process.pid)

    def test_finds_it_gone():
        try:
            stat = Path(f"/proc/{left[0]}/stat").read_text()
        except FileNotFoundError:
            return
        assert stat.rpartition(")")[2].split()[0] == "Z", "the server has not reaped it yet"

    def adds(rank, file):
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == 2
        dist.destroy_process_group()

    def test_works(tmp_path):
        mp.spawn(adds, args=(tmp_path / "store",), nprocs=2)
        tensor = torch.zeros(3)
        mp.spawn(lends, args=(tensor.share_memory_(),), nprocs=2)
        assert tensor.tolist() == [2, 2, 2]
        with SPAWN.Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]

    def lends(rank, tensor):
        tensor += 1

    def test_forkserver_pools_have_torch():
        with multiprocessing.get_context("forkserver").Pool(1) as pool:
            assert pool.apply(has_torch)

    def has_torch():
        return "torch" in sys.modules

    @pytest.mark.timeout(5)
    def test_hangs():
        mp.spawn(sleeps, nprocs=2)

    def sleeps(rank):
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def ended(module_lab: Lab):
    module_lab.write(test_spawning=SUITE)
    return module_lab.run("--isolate-files", "--timeout", "120", ".", limit_s=480)


def test_verdicts_are_those_of_spawned_processes(ended):
    assert {
        "test_is_like_a_new_interpreter[1]": Outcome.PASSED,
        "test_is_like_a_new_interpreter[None]": Outcome.PASSED,
        "test_raises": Outcome.PASSED,
        "test_crashes": Outcome.PASSED,
        "test_exit_codes": Outcome.PASSED,
        "test_works": Outcome.PASSED,
        "test_forkserver_pools_have_torch": Outcome.PASSED,
        "test_hangs": Outcome.FAILED,
        "test_leaves_one": Outcome.PASSED,
        "test_finds_it_gone": Outcome.PASSED,
    } == {test.test.name: test.final.outcome for test in ended.run.tests}, ended.output


def test_a_hang_ends_at_its_limit(ended):
    assert "timed out after 5 s" in ended.result("test_hangs").message


def test_output_is_in_the_log_of_the_test(ended):
    log = ended.log("test_is_like_a_new_interpreter[1]", 0)
    assert all(f"rank {rank} speaks" in log for rank in range(2))


def test_what_a_test_leaves_is_named_and_pythons_own_helpers_are_not(ended):
    (left,) = ended.result("test_leaves_one").ranks[0].leaks
    assert "which was killed" in left
    assert all("resource_tracker" not in note for note in ended.run.notes)
