"""Nodes that are processes of this machine: shards of a plan for a scheduler, with tests that are tried again."""

from __future__ import annotations

import json
import signal

import pytest
from cluster_programs import TALKS
from lab import Ended, Lab
from launching import wait_until

from disttest.extras.shards.shard_plan import decode_plan
from disttest.model import Cause, Outcome

# What has been here is remembered in files: they outlive worlds, and the nodes share a folder.
FLAKY = """
    import os, pathlib, signal
    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    def been_here(name, rank):
        marker = pathlib.Path(f"{name}.{rank}")
        was = marker.exists()
        marker.touch()
        return was

    @pytest.mark.nodes(2)
    def test_flaky(world):
        print("rank", world.rank, "in", os.getpid())
        if not been_here("flaky", world.rank) and world.rank == 1:
            raise ValueError("not yet")
        dist.barrier()

    @pytest.mark.nodes(2)
    def test_after(world):
        dist.barrier()

    @pytest.mark.nodes(2)
    def test_loses_its_world(world):
        if not been_here("loses", world.rank) and world.rank == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        dist.barrier()

    def test_flaky_on_one_node(world):
        if not been_here("one", world.rank) and world.rank == 1:
            raise ValueError("not yet")
        dist.barrier()

    def test_always(world):
        assert world.rank == 0, "never on rank one"
"""

GONE = """
    import pytest

    @pytest.mark.world_size(2)
    def test_gone_since_the_plan(world):
        pass
"""


@pytest.fixture(scope="module")
def planned(module_lab: Lab) -> Ended:
    module_lab.write(test_flaky=FLAKY, test_gone=GONE)
    ended = module_lab.run("plan", ".", "--device", "cpu", "--pool", "big:slurm::2x2", "--matrix", "m.json")
    (module_lab.folder / "test_gone.py").unlink()
    return ended


def test_an_option_with_which_no_job_can_run_refuses_the_run(lab: Lab) -> None:
    lab.write(test_gone=GONE)
    ended = lab.run(".", "--device", "cpu", "--launcher", "local", "--image", "org/tests:1")
    assert ended.exit_code == 9, ended.output
    assert ended.output.count("--image needs a scheduler that starts containers") == 1


@pytest.fixture(scope="module")
def shards(planned: Ended) -> tuple[Ended, Ended]:
    """Both shards, side by side: the worlds that span nodes, and the lease."""
    lab = Lab(planned.results.parent)
    common = ("run", ".", "--device", "cpu", "--launcher", "local", "--plan", "plan.json", "--retries", "1")
    each = (("--infra-retries", "1"), ("--flaky", "fail"))
    running = [
        lab.start(*common, "--shard", str(number), "--results", f"shard-{number}", *more)
        for number, more in enumerate(each, 1)
    ]
    ended = []
    for number, process in enumerate(running, 1):
        output, _ = process.communicate(timeout=240)
        ended.append(Ended(process.returncode, output, lab.folder / f"shard-{number}"))
    return ended[0], ended[1]


@pytest.fixture
def spanning(shards: tuple[Ended, Ended]) -> Ended:
    return shards[0]


@pytest.fixture
def lease(shards: tuple[Ended, Ended]) -> Ended:
    return shards[1]


def attempts(ended: Ended, name: str) -> list[Outcome]:
    (found,) = [test for test in ended.run.tests if f"::{name}[" in test.test.nodeid]
    return [attempt.outcome for attempt in found.attempts]


def test_worlds_that_span_nodes_are_a_shard_of_their_own(planned: Ended) -> None:
    assert planned.exit_code == 0, planned.output
    plan = decode_plan((planned.results.parent / "plan.json").read_bytes())
    assert [(2, 1, 3), (1, 2, 3)] == [
        (each.grant.nodes, each.grant.ranks_per_node, len(each.tests)) for each in plan.shards if each.grant
    ]
    entries = json.loads((planned.results.parent / "m.json").read_text())["include"]
    assert [1, 2] == [entry["shard"] for entry in entries]


def test_what_passes_in_a_new_world_over_nodes_is_flaky(spanning: Ended) -> None:
    assert spanning.exit_code == 0, spanning.output
    assert [Outcome.FAILED, Outcome.PASSED] == attempts(spanning, "test_flaky")
    assert [Outcome.PASSED] == attempts(spanning, "test_after")
    assert 3 == len(spanning.run.tests)
    (flaky,) = spanning.run.flaky
    first, second = flaky.attempts
    assert first.world_id != second.world_id
    assert {"local0", "local1"} == {rank.node for rank in second.ranks}
    for number, attempt in ((1, first), (2, second)):
        log = f"logs/{flaky.test.slug}/attempt-{number}/rank1.log"
        assert log == attempt.ranks[1].log
        assert f"rank 1 in {attempt.ranks[1].pid}" in (spanning.results / log).read_text()


def test_a_share_that_is_lost_is_tried_again_on_its_own_budget(spanning: Ended) -> None:
    assert [Outcome.ERROR, Outcome.PASSED] == attempts(spanning, "test_loses_its_world")
    (note,) = [note for note in spanning.run.notes if "infrastructure, tried again in" in note]
    assert "test_loses_its_world" in note
    assert "SIGKILL" in note


def test_attempts_on_one_node_are_kept_too(lease: Ended) -> None:
    assert lease.exit_code == 1, lease.output
    assert [Outcome.FAILED, Outcome.PASSED] == attempts(lease, "test_flaky_on_one_node")
    assert [Outcome.FAILED, Outcome.FAILED] == attempts(lease, "test_always")
    assert [Cause.TEST] == [test.final.cause for test in lease.run.bad]
    assert "--flaky=fail: 1 test passed only when tried again" in lease.output
    assert "test_always[2xgloo]' --world-sizes 2 --backend gloo --device cpu --launcher=local" in lease.output


def test_the_shards_are_one_run_in_the_end(spanning: Ended, lease: Ended) -> None:
    lab = Lab(spanning.results.parent)
    merged = lab.run("merge", "shard-1", "shard-2", "--results", "merged")

    assert merged.exit_code == 1, merged.output
    assert "2 shards, " in merged.output
    assert "1 failed" in merged.output
    assert "error" not in merged.output, "a test that is gone is not owed"


@pytest.mark.slow("each node is a new interpreter")
def test_last_failed_on_nodes_runs_only_what_failed(lab: Lab) -> None:
    lab.write(test_two=TWO)
    arguments = ("--launcher", "local", "--nodes", "1", "--device", "cpu", "--results", "results")
    assert len(lab.run("run", ".", *arguments).run.tests) == 2

    again = lab.run("run", ".", *arguments, "--last-failed")

    assert [each.test.nodeid for each in again.run.tests] == ["test_two.py::test_red[2xgloo]"]


def test_nothing_is_said_to_be_recorded_on_nodes(lab: Lab) -> None:
    lab.write(test_two=TWO)

    ended = lab.run(
        "run", ".", "-k", "red", "--launcher", "local", "--nodes", "1", "--device", "cpu", "--record", "all"
    )

    assert "--record has no effect with --launcher" in ended.output
    assert "replay:" not in ended.output and "repeat: disttest run" in ended.output


TWO = """
import pytest

@pytest.mark.world_size(2)
def test_green(world):
    pass

@pytest.mark.world_size(2)
def test_red(world):
    assert world.size == 3
"""


@pytest.mark.slow("each node is a new interpreter")
def test_a_file_that_skips_itself_is_listed_once_and_the_nodes_have_the_same_tests(lab: Lab) -> None:
    lab.write(test_gone="import pytest\npytest.skip('not here', allow_module_level=True)", test_two=TWO)

    ended = lab.run("run", ".", "--launcher", "local", "--nodes", "1", "--device", "cpu")

    outcomes = {each.test.nodeid.rpartition("/")[2]: each.final.outcome for each in ended.run.tests}
    assert outcomes == {
        "test_gone.py": Outcome.SKIPPED,
        "test_two.py::test_green[2xgloo]": Outcome.PASSED,
        "test_two.py::test_red[2xgloo]": Outcome.FAILED,
    }
    assert {len(each.attempts) for each in ended.run.tests} == {1}


@pytest.mark.slow("each node is a new interpreter")
@pytest.mark.parametrize(("name", "ranks", "seen"), [("over_nodes", 4, "four"), ("on_one", 2, "two")])
def test_what_ranks_on_nodes_print_is_shown_while_they_run(
    lab: Lab, name: str, ranks: int, seen: str
) -> None:
    lab.write(test_talks=TALKS)
    run = lab.start("run", ".", "-k", name, "-s", "--launcher", "local", "--nodes", "2", "--device", "cpu")
    shown = ""
    while not {f"[rank {rank}] hello from {rank}" for rank in range(ranks)} <= set(shown.splitlines()):
        line = run.stdout.readline()
        assert line, shown
        shown += line
    (lab.folder / seen).touch()
    shown += run.communicate(timeout=120)[0]

    assert run.returncode == 0, shown
    verdict = shown.index("PASSED ")
    for rank in range(ranks):
        last = f"[rank {rank}] rank {rank} without an end\n"
        assert shown.index(f"[rank {rank}] hello") < shown.index(last) < verdict


@pytest.mark.slow("each node is a new interpreter")
def test_without_s_nothing_that_ranks_on_nodes_print_is_shown(lab: Lab) -> None:
    lab.write(test_talks=TALKS)
    (lab.folder / "two").touch()
    arguments = ("--launcher", "local", "--nodes", "2", "--device", "cpu")
    silent = lab.run("run", ".", "-k", "on_one", *arguments)
    assert silent.exit_code == 0, silent.output
    assert "hello from" not in silent.output

    alone = lab.run("run", ".", "-k", "alone", "-s", *arguments)
    assert "of no rank" in (alone.results / "junit.xml").read_text(), "no rank: its output is for its report"


NEVER_COLLECTED = """
    import pathlib, time

    pathlib.Path("collecting").touch()
    while True:
        time.sleep(0.01)
"""


def test_a_signal_while_tests_are_collected_cancels_the_run(lab: Lab) -> None:
    lab.write(test_slow=NEVER_COLLECTED)
    process = lab.start("test_slow.py", "--launcher", "local", "--nodes", "2")
    wait_until((lab.folder / "collecting").exists, "the tests are collected")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    ended = Ended(process.returncode, output, lab.folder / "results")

    assert ended.exit_code == 128 + signal.SIGTERM, output
    assert ended.run.reason == "the run was cancelled by SIGTERM"
    assert (ended.results / "junit.xml").exists()


LATE = """
    import pathlib
    import pytest

    pytestmark = pytest.mark.world_size(2)
    pathlib.Path("collecting").touch()

    def test_never_starts(world):
        pass
"""
CLOCK_OF_THE_TEST = """
import pathlib, sys
from disttest.extras.cluster.client import cluster_session
from disttest.cli.main import main

class clock:
    monotonic = staticmethod(lambda: 600.0 if pathlib.Path("collecting").exists() else 0.0)

cluster_session.time = clock
del sys.argv[1:4]
main()
"""
"""The command with a clock that reaches the deadline when the tests are collected, however long that takes."""


def test_the_deadline_counts_while_tests_are_collected(lab: Lab) -> None:
    """As in a run on this machine: nothing begins after it."""
    lab.write(test_late=LATE)
    ended = lab.run(
        *("test_late.py", "--launcher", "local", "--nodes", "2", "--deadline", "600"),
        wrapper=(lab.python, "-c", CLOCK_OF_THE_TEST),
        DISTTEST_NODE_COMMAND="touch started",
    )

    assert (ended.exit_code, ended.run.reason) == (124, "the deadline of the run (600 s) passed"), (
        ended.output
    )
    assert not (lab.folder / "started").exists()
    (test,) = ended.run.tests
    assert (
        test.final.message
        == "did not start: its job ended before: cancelled: the deadline of the run (600 s) passed"
    )
    assert "did not start" in (ended.results / "junit.xml").read_text()


def test_tests_that_are_collected_far_beyond_the_deadline_are_given_up(lab: Lab) -> None:
    lab.write(test_slow=NEVER_COLLECTED)
    ended = lab.run("test_slow.py", "--launcher", "local", "--nodes", "2", "--deadline", "1")

    assert (ended.exit_code, ended.run.reason) == (124, "the deadline of the run (1 s) passed"), ended.output
    assert (ended.results / "junit.xml").exists()


LEAVES_AT_TWO_TIMES = """
    import os, pathlib, threading, time
    import pytest
    import torch.distributed as dist

    pytestmark = [pytest.mark.world_size(2), pytest.mark.nodes(2), pytest.mark.isolation("fresh")]

    @pytest.mark.parametrize("leaves", ["nothing", "thread"])
    def test_one_goes_on(world, leaves):
        pids = [None, None]
        dist.all_gather_object(pids, os.getpid())
        store = dist.distributed_c10d._get_default_store()
        if world.rank == 0 and leaves == "thread":
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        if world.rank == 1:
            while not list(pathlib.Path("results").glob(f"logs/*{leaves}*/attempt-1/rank0.log")):
                time.sleep(0.01)
            for _ in range(100):  # time to end for who is done
                if not pathlib.Path(f"/proc/{pids[0]}").exists():
                    break
                time.sleep(0.01)
            store.set("late", "yes")
            assert store.get("late") == b"yes"
"""


@pytest.mark.slow("each node is a new interpreter")
def test_the_store_of_a_world_over_nodes_is_there_until_all_are_done(lab: Lab) -> None:
    lab.write(test_late=LEAVES_AT_TWO_TIMES)
    ended = lab.run("test_late.py", "--launcher", "local", "--nodes", "2", "--device", "cpu")

    assert ended.exit_code == 0, ended.output
    for leaves in ("nothing", "thread"):
        assert "recvValue failed" not in ended.log(f"test_one_goes_on[2xgloo@2nodes-{leaves}]", 1)


SAYS_A_SECRET = """
    import os, pathlib
    import pytest

    pytestmark = pytest.mark.world_size(2)
    SECRET = b"s41d-" + b"secret"

    def leak():
        os.write(1, SECRET)
        temporary = pathlib.Path(os.environ["TMPDIR"])
        assert not [path for path in temporary.rglob("*") if path.is_file() and SECRET in path.read_bytes()]

    @pytest.mark.nodes(2)
    def test_over_nodes(world):
        leak()

    @pytest.mark.nodes(1)
    def test_on_one_node(world):
        leak()
"""


@pytest.mark.slow("each node is a new interpreter")
def test_secrets_are_hidden_on_nodes_in_names_of_files_too(lab: Lab) -> None:
    lab.write(test_admin=SAYS_A_SECRET)
    (lab.folder / "tmp").mkdir()
    (lab.folder / "admin").mkdir()
    (lab.folder / "test_admin.py").rename(lab.folder / "admin/test_admin.py")
    (lab.folder / "admin/pytest.ini").write_text("[pytest]\n")
    secrets = ("admin", "s41d-secret")
    ended = lab.run(
        *("run", "admin", "--launcher", "local", "--nodes", "2", "--device", "cpu"),
        *("--mask", "admin", "--pass-env", "TMPDIR"),
        TMPDIR=str(lab.folder / "tmp"),
        DISTTEST_MASK="s41d-secret",
    )

    assert ended.exit_code == 0, ended.output
    assert ["test_***.py"] * 2 == [test.test.file.rpartition("/")[2] for test in ended.run.tests]
    assert not any(secret in ended.output for secret in secrets)
    for path in ended.results.rglob("*"):
        assert "admin" not in path.name
        assert not path.is_file() or not any(secret.encode() in path.read_bytes() for secret in secrets), path
    for name in ("test_over_nodes", "test_on_one_node"):
        assert "***" in ended.log(name, 1)


def test_a_plugin_that_the_command_leaves_out_is_left_out_on_nodes_too(lab: Lab) -> None:
    lab.write(test_one="import pytest\n\n@pytest.mark.world_size(1)\ndef test_one(world):\n    pass\n")
    options = ("--launcher", "local", "--nodes", "1", "--device", "cpu", "--results", "results")
    ended = lab.run("run", ".", *options, "-p", "no:disttest.html")

    assert Outcome.PASSED is ended.result("test_one").outcome, ended.output
