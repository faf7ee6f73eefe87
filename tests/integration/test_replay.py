"""``disttest record`` and ``disttest replay``: a rank runs alone as it ran among its peers, or is said to do otherwise."""

from __future__ import annotations

import html
import re
import shlex
import shutil
import xml.etree.ElementTree as ET

import pytest
from lab import Lab
from terminal import Terminal

from disttest.results.journal import FILE_NAME

TESTS = """
    import os, threading, time
    import pytest, torch, torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch import nn
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor
    from torch.nn.parallel import DistributedDataParallel

    pytestmark = pytest.mark.world_size(2)

    def test_trains(world):
        model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 8) + world.rank).square().mean().backward()
            optimizer.step()
        print("parameters", sum(each.double().sum().item() for each in model.parameters()).hex())

    def test_exchanges(world):
        objects = [None, None]
        dist.all_gather_object(objects, {"rank": world.rank})
        assert objects == [{"rank": 0}, {"rank": 1}]
        group = dist.new_group([0, 1], group_desc="pair")
        assert dist.get_backend(group) == "gloo"
        work = dist.all_reduce(value := torch.tensor([1.0, float("nan")]), group=group, async_op=True)
        summed = work.get_future().then(lambda done: done.value()[0].clone()).wait()
        assert value[0] == 2 and summed[1].isnan()
        message, received = torch.full((3, 2), float(world.rank)), torch.zeros(3, 2)
        ops = [dist.P2POp(dist.isend, message, 1 - world.rank), dist.P2POp(dist.irecv, received, 1 - world.rank)]
        for each in dist.batch_isend_irecv(ops):
            each.wait()
        assert received.eq(1 - world.rank).all()
        store = dist.distributed_c10d._get_default_store()
        assert store.add("count", 1) in (1, 2)
        store.set(f"from {world.rank}", b"\\x00word")
        assert store.get(f"from {1 - world.rank}") == b"\\x00word"
        assert not store.check(["nobody"]) and store.compare_set("nobody", "a", "b")
        dist.monitored_barrier()
        dist.destroy_process_group(group)

    def test_functional(world):
        gathered = functional.all_gather_tensor(torch.arange(2.0) + world.rank, 0, dist.group.WORLD)
        assert (gathered + 0).tolist() == [0, 1, 1, 2]
        mesh = DeviceMesh("cpu", [0, 1])
        assert distribute_tensor(torch.arange(8.0), mesh, [Shard(0)]).sum().full_tensor() == 28

    def test_compiled(world):
        @torch.compile(backend="aot_eager", fullgraph=True)
        def step(x):
            return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1
        assert step(torch.ones(4) + world.rank).eq(7).all()

    def test_receives(world):
        box = ["hello"] if world.is_first else [None]
        dist.broadcast_object_list(box, 0)
        # The value of a buffer that is only written differs from run to run: here it is the process id.
        buffer = torch.ones(8) if world.is_first else torch.full((8,), float(os.getpid()))
        dist.broadcast(buffer, 0)
        x = torch.full((8,), float(os.getpid()))
        dist.scatter(x, [torch.ones(8)] * 2 if world.is_first else None, 0)
        dist.all_gather_into_tensor(torch.full((16,), float(os.getpid())), x)

    @pytest.mark.timeout(20)
    def test_hangs(world):
        dist.all_reduce(torch.ones(2))
        here = 40 + world.rank
        if world.rank == 1:
            dist.barrier()

    def test_fails(world):
        dist.barrier()
        if world.rank == 1:
            raise ValueError("boom")
        dist.barrier()

    def test_goes_another_way(world):
        dist.all_reduce(torch.ones(1))
        if "ANOTHER" in os.environ:
            dist.broadcast(torch.ones(3), 0)
        else:
            dist.all_reduce(torch.ones(2))

    def test_reads_the_clock(world):
        dist.all_reduce(torch.tensor(time.time(), dtype=torch.double))

    def test_threads(world):
        thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)))
        thread.start()
        thread.join()

    def test_calls_remotely(world):
        import torch.distributed.rpc as rpc
        os.environ["MASTER_PORT"] = str(29000 + os.getppid() % 20000)
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        rpc.init_rpc(f"w{world.rank}", rank=world.rank, world_size=2)
        rpc.shutdown()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run that was recorded, of which tests read."""
    lab = Lab(tmp_path_factory.mktemp("recorded")).write(test_all=TESTS)
    lab.ended = lab.run("record", "test_all.py")
    return lab


def replay(lab, name, rank, *arguments, **environ):
    return lab.run("replay", f"::{name}[", "--rank", str(rank), *arguments, **environ)


@pytest.mark.slow("records a run, and replays ranks of it")
@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("test_trains", 0),
        ("test_trains", 1),
        ("test_exchanges", 1),
        ("test_functional", 0),
        ("test_compiled", 1),
        ("test_receives", 0),
        ("test_receives", 1),
    ],
)
def test_a_rank_alone_does_what_it_did(recorded, name, rank):
    ended = replay(recorded, name, rank)

    assert 0 == ended.exit_code, ended.output
    assert re.search(r"as recorded: the rank passed, after \d+ calls", ended.output), ended.output
    for line in recorded.ended.log(name, rank).splitlines():
        assert line in ended.output


def test_a_hang_ends_where_it_hung(recorded):
    ended = replay(recorded, "test_hangs", 1)

    assert 0 == ended.exit_code, ended.output
    assert (
        "as recorded: the rank hung in its call 3, barrier of group default at test_all.py:" in ended.output
    )


@pytest.mark.slow("records a run, and replays ranks of it")
def test_a_failure_fails_again_and_its_peer_meets_it_again(recorded):
    ended = replay(recorded, "test_fails", 1)

    assert 0 == ended.exit_code, ended.output
    assert re.search(r"as recorded: the rank failed: ValueError: boom, after \d calls", ended.output)
    peer = replay(recorded, "test_fails", 0)
    assert 0 == peer.exit_code, peer.output


def test_what_the_rank_does_otherwise_is_named_by_both_lines(recorded):
    ended = replay(recorded, "test_goes_another_way", 0, ANOTHER="1")

    assert 1 == ended.exit_code, ended.output
    assert re.search(
        r"the rank did something else than recorded: call 3 is broadcast of group default with root 0 "
        r"\(float32\[3\]\) at test_all.py:\d+, but allreduce of group default \(SUM float32\[2\]\) "
        r"at test_all.py:\d+ was recorded",
        ended.output,
    ), ended.output


def test_values_that_differ_are_no_replay(recorded):
    ended = replay(recorded, "test_reads_the_clock", 0)

    assert 1 == ended.exit_code, ended.output
    assert "handed over other values than recorded, first in call 2, allreduce" in ended.output


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("test_threads", "another thread than the test's called allreduce at test_all.py:"),
        ("test_calls_remotely", "it uses RPC"),
    ],
)
def test_what_cannot_be_replayed_is_said(recorded, name, reason):
    ended = replay(recorded, name, 0)

    assert 4 == ended.exit_code, ended.output
    assert f"cannot be replayed: {reason}" in ended.output


def test_words_that_lead_nowhere_are_answered(recorded):
    assert "ran with 2 ranks; give --rank 0 to 1" in replay(recorded, "test_trains", 7).output
    assert "give the id of one of them" in recorded.run("replay", "test_", "--rank", "0").output


@pytest.mark.slow("records a run, and replays ranks of it")
def test_with_record_failures_those_of_passed_tests_go(lab, nothing_left):
    ended = lab.write(test_all=TESTS).run(
        "run", "test_all.py", "--record", "failures", "-k", "exchanges or fails"
    )

    assert 1 == ended.exit_code
    kept = {path.parts[-3].partition("-2xgloo")[0] for path in ended.results.rglob("*.recording")}
    assert {"test_all.py-test_fails"} == kept
    command = "disttest replay 'test_all.py::test_fails[2xgloo]' --rank 1"
    for text in (
        ended.output,
        *(ET.tostring(each, "unicode") for each in ended.junit().iter("failure")),
        *((ended.results / name).read_text() for name in ("summary.md", "report.html")),
        lab.run("explain", "test_fails").output,
    ):
        assert command in html.unescape(text)
    assert "as recorded" in lab.run(*shlex.split(command)[1:]).output
    assert "disttest replay" not in lab.run("explain", "test_exchanges").output
    ended = lab.run("replay", "test_exchanges")
    assert 4 == ended.exit_code
    assert "has no recording of rank 0 of test_all.py::test_exchanges[2xgloo]; record it with" in ended.output


@pytest.mark.slow("a run and a replay")
def test_a_failure_in_quarantine_is_recorded_and_fails_again(lab):
    (lab.folder / "flaky.toml").write_text(
        '[[test]]\ntest = "test_all.py::test_fails"\nowner = "ann"\nreason = "races"\nexpires = 2999-01-01\n'
    )
    lab.write(test_all=TESTS).run("run", "test_all.py", "--record", "failures", "-k", "fails")
    ended = lab.run("replay", "test_fails", "--rank", "1")

    assert ended.exit_code == 0, ended.output
    assert "as recorded: the rank failed: ValueError: boom" in ended.output


UNRECORDED = """
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class TestTheirs(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_theirs(self):
            pass
"""
ONE = """
    import pytest

    @pytest.mark.world_size(2)
    def test_one(world):
        pass
"""


@pytest.mark.parametrize(
    ("arguments", "told", "kept"),
    [
        ((), "1 of 2 tests, whose classes start their ranks", 2),
        (("test_plain.py", "--spmd", "2"), "1 of 1 tests, whose ranks collect the tests", 0),
        (("--record", "off"), "", 0),
    ],
)
def test_what_leaves_no_recording_is_said_when_the_run_begins(lab, arguments, told, kept):
    lab.write(test_theirs=UNRECORDED, test_one=ONE, test_plain="def test_plain():\n    pass\n")
    paths = [] if "test_plain.py" in arguments else ["test_theirs.py", "test_one.py"]
    ended = lab.run("run", "--record", "all", *paths, *arguments)
    assert ended.exit_code == 0, ended.output
    assert ended.output.count("disttest: --record has no effect") == bool(told)
    assert not told or f"disttest: --record has no effect on {told}\n" in ended.output
    assert len(list(ended.results.rglob("*.recording"))) == kept


@pytest.mark.slow("records a run, and replays ranks of it")
def test_a_debugger_stops_where_the_rank_hung(recorded):
    terminal = Terminal(recorded, "test_hangs", "--rank", "1", "--pdb", command="replay")
    terminal.read_until(lambda screen: "(Pdb) " in screen)
    terminal.answer("up\n" * 2)
    terminal.answer("p here + 1000\n")
    terminal.read_until(lambda screen: "1041" in screen)
    terminal.answer("q\n")
    terminal.end()

    assert "1041" in terminal.screen


@pytest.mark.slow("records a run, and replays ranks of it")
@pytest.mark.parametrize(
    "test",
    [
        pytest.param(
            "ddp/test_equivalence.py::test_trains_as_one_process_does",
            marks=pytest.mark.thorough("the other test has the same parts and more collectives"),
        ),
        "fsdp/test_fully_shard.py::test_training_equals_one_process",
    ],
)
def test_bundled_tests_that_train_are_equal_to_the_bit(lab, test):
    ended = lab.run("record", test, "--world-sizes", "2")
    assert 0 == ended.exit_code, ended.output

    replayed = lab.run("replay", ended.run.tests[0].test.nodeid, "--rank", "1")
    assert 0 == replayed.exit_code, replayed.output


def test_a_recording_that_was_cut_off_is_refused(recorded, tmp_path):
    results = tmp_path / "results"
    shutil.copytree(recorded.ended.results, results)
    log = recorded.ended.result("test_trains").ranks[0].log
    file = (results / log).with_suffix(".recording")
    data = file.read_bytes()
    file.write_bytes(data[: -len(b"....\x91\x07")])  # its last record
    ended = recorded.run("replay", str(results), "test_trains", "--rank", "0")

    assert 4 == ended.exit_code, ended.output
    assert "is incomplete; copy it from the run again" in ended.output


def test_results_of_another_machine_are_replayed_here(recorded, tmp_path):
    results = tmp_path / "results"
    shutil.copytree(recorded.ended.results, results)
    journal = results / FILE_NAME
    folder = str(recorded.folder)
    assert folder in journal.read_text()
    journal.write_text(journal.read_text().replace(folder, "/home/runner/work/project"))
    ended = recorded.run("replay", str(results), "test_exchanges", "--rank", "0")

    assert 0 == ended.exit_code, ended.output
    assert "as recorded: the rank passed" in ended.output


def test_a_recording_is_as_large_as_what_was_received(lab):
    lab.write(
        test_size="""
            import pytest, torch, torch.distributed as dist

            @pytest.mark.world_size(2)
            def test_size(world):
                for _ in range(10):
                    dist.all_reduce(torch.ones(25_000))
        """
    )
    ended = lab.run("record", "test_size.py")

    (size, _) = (path.stat().st_size for path in ended.results.rglob("*.recording"))
    assert 1_000_000 < size < 1_002_000
