"""Runs on a real Slurm cluster, and what can go wrong in one: the verdict is right, and nothing stays allocated."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cluster_programs
import psutil
import pytest
from cluster_programs import SPAN, TALKS, assert_heard_while_it_runs, assert_lost, waits
from cluster_run import ClusterRun
from documents import blocks, commands

from disttest.model import Cause, Outcome, RankEnd

from .conftest import ClusterLab

SKEW = Path(__file__).parents[1] / "support" / "clock_skew.c"


@pytest.fixture(scope="module")
def faults(shared_cluster, tmp_path_factory: pytest.TempPathFactory) -> ClusterRun:
    """One run with all faults that end one test and not the run."""
    lab = ClusterLab(shared_cluster, tmp_path_factory.mktemp("faults")).write(
        test_faults=cluster_programs.faults(hang_limit_s=3)
    )
    return lab.on_slurm("test_faults.py", *SPAN, "--world-sizes", "2,4").wait()


class TestFaultsOfOneTest:
    def test_the_run_goes_on_after_each(self, faults: ClusterRun) -> None:
        assert faults.exit_code == 1, faults.output
        for name in ("test_first[4", "test_last[4", "test_floods[4", "test_on_one_node"):
            assert faults.result(name).outcome is Outcome.PASSED, faults.output
        assert len(faults.result("test_last[4").ranks) == 4
        assert {r.node for r in faults.result("test_last[4").ranks} == {"n1", "n2"}

    def test_an_exception_names_rank_and_node(self, faults: ClusterRun) -> None:
        result = faults.result("test_raises_on_the_other_node[4")
        assert (result.outcome, result.culprit, result.cause) == (Outcome.FAILED, 2, Cause.TEST)
        assert result.message == "rank 2 of 4 failed: ValueError: boom [rank 2 is on node n2]"
        assert "boom" in result.details
        assert "timed out" not in result.message

    def test_a_crash_names_rank_and_node_and_ends_the_others(self, faults: ClusterRun) -> None:
        result = faults.result("test_crashes[4")
        assert (result.outcome, result.culprit) == (Outcome.ERROR, 3)
        assert "rank 3 of 4 was killed by SIGSEGV" in result.message
        assert "node n2" in result.message
        assert set(result.victims) <= {0, 1, 2}
        assert result.ranks[3].end is RankEnd.SIGNALLED

    def test_a_hang_names_who_never_came_and_where_it_was(self, faults: ClusterRun) -> None:
        result = faults.result("test_hangs[4")
        assert result.outcome is Outcome.FAILED
        assert result.message.startswith("rank 2 never joined all_reduce"), result.message
        assert "ranks 0, 1, 3 wait at test_faults.py:" in result.message
        assert "rank 2 is on node n2" in result.message
        assert all(record.hung and record.stacks for record in result.ranks)
        assert 3 <= result.duration_s

    def test_a_flood_is_capped_on_its_way(self, faults: ClusterRun) -> None:
        result = faults.result("test_floods[4")
        sizes = [(faults.results / record.log).stat().st_size for record in result.ranks]
        assert all(1024 < size < 64 * 1024 for size in sizes)
        assert "stayed on the node" in (faults.results / result.ranks[0].log).read_text()

    def test_a_child_in_a_session_of_its_own_is_killed_and_noted(
        self, faults: ClusterRun, shared_cluster
    ) -> None:
        assert faults.result("test_leaves_a_process_in_a_session_of_its_own[4").outcome is Outcome.PASSED
        shared_cluster.wait_until_free()
        assert any("sleep 86399" in note for note in faults.run.notes), faults.run.notes

    def test_without_a_shared_folder_a_test_that_needs_one_is_skipped(self, faults: ClusterRun) -> None:
        result = faults.result("test_needs_a_shared_folder[4")
        assert result.outcome is Outcome.SKIPPED
        assert "--shared-dir" in result.message

    def test_reports_are_the_usual_ones(self, faults: ClusterRun) -> None:
        names = {path.name for path in faults.results.iterdir()}
        assert {"junit.xml", "summary.md", "results.json", "report.html", "events.jsonl"} <= names
        worlds = {slot for world in faults.run.worlds for slot in world.slots}
        assert {"n1/cpu:0", "n1/cpu:1", "n2/cpu:0", "n2/cpu:1"} <= worlds


def test_the_suites_pass_over_two_nodes_whose_clocks_differ_by_an_hour(lab: ClusterLab) -> None:
    library = lab.folder / "clock_skew.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SKEW, "-ldl"], check=True)
    skew = lab.cluster.folder / "environment.n2"
    skew.write_text(f"export LD_PRELOAD={library}\nexport CLOCK_SKEW_S=3600\n")
    before = time.time()
    try:
        run = lab.on_slurm(
            "smoke",
            "collectives",
            "ddp",
            *SPAN,
            "--",
            "-k",
            "smoke or test_objects or test_buffers",
        ).wait(200)
    finally:
        skew.unlink()
    assert run.exit_code == 0, run.output
    passed = [t for t in run.run.tests if t.final.outcome is Outcome.PASSED]
    suites = {t.test.suite for t in passed}
    assert suites == {"smoke", "collectives", "ddp"}, run.output
    spanning = [t for t in passed if t.test.world and t.test.world.nodes == 2]
    assert len(spanning) > 20
    for each in passed:
        assert before <= each.final.started_at_s <= time.time(), each.test.nodeid


def test_a_node_that_is_killed_in_a_collective(lab: ClusterLab) -> None:
    lab.write(test_waits=waits())
    node = lab.cluster.nodes[1]
    run = lab.on_slurm("test_waits.py", *SPAN, DISTTEST_SILENCE_LIMIT="8")
    run.await_file(lab.folder / "here")
    lab.cluster.kill_node(node)
    try:
        run.wait()
    finally:
        lab.cluster.start_node(node)
    result = assert_lost(run, "ranks 2, 3 of 4 on node n2 left no record: node lost: ")
    assert {record.rank for record in result.ranks} <= {0, 1}
    assert run.result("test_after[4").cause is Cause.INFRASTRUCTURE


def test_nodes_that_are_cut_off_from_each_other(lab: ClusterLab) -> None:
    lab.write(test_waits=waits(limit_s=6))
    run = lab.on_slurm("test_waits.py", *SPAN, "--timeout", "6")
    run.await_file(lab.folder / "here")
    with lab.cluster.cut_off(*lab.cluster.nodes):
        run.wait()
    result = run.result("test_waits[4")
    assert result.outcome is Outcome.FAILED, run.output
    assert "all_reduce" in result.message
    assert "timed out after 6 s" in result.message
    assert "n1" in result.message
    assert len(result.ranks) == 4


def test_the_controller_is_killed_while_a_job_runs(lab: ClusterLab) -> None:
    lab.write(test_waits=waits(steps=20))
    run = lab.on_slurm("test_waits.py", *SPAN)
    run.await_file(lab.folder / "here")
    lab.cluster.kill_controller()
    try:
        run.wait()
    finally:
        # It may not have been told that the job has ended, and still hold the nodes: the next command gives them back.
        lab.cluster.start_controller(idle=False)
        lab.start("cluster-clean").wait()
        # slurmstepd tells the controller of its end again after 60 s if it was away at the first time.
        lab.cluster.wait_until_free(90)
    assert [t.final.outcome for t in run.run.tests] == [Outcome.PASSED] * 3, run.output
    assert run.exit_code == 0


def test_a_client_that_is_killed_leaves_nothing(lab: ClusterLab) -> None:
    lab.write(test_waits=waits())
    run = lab.on_slurm("test_waits.py", *SPAN)
    run.await_file(lab.folder / "here")
    os.kill(_client(run), signal.SIGKILL)
    lab.cluster.wait_until_free(30)


def test_leftovers_of_a_client_that_died_with_its_srun(lab: ClusterLab) -> None:
    """Its job waits in the queue; the next command of this machine finds it by name, and no living client's."""
    with _busy(lab):
        lab.write(test_waits=waits())
        doomed = lab.on_slurm("test_waits.py", *SPAN)
        _until(lambda: any(f"-{_client(doomed)}-" in job for job in lab.cluster.jobs()))
        for process in [psutil.Process(_client(doomed)), *psutil.Process(_client(doomed)).children()]:
            process.kill()
        doomed.wait()
        living = lab.on_slurm("test_waits.py", *SPAN, "--results", "living")
        _until(lambda: any(f"-{_client(living)}-" in job for job in lab.cluster.jobs()))
        names = " ".join(lab.cluster.jobs())
        assert "other" in names
        assert f"-{doomed.process.pid}-" not in names
        assert f"-{living.process.pid}-" in names
        living.process.terminate()
        living.wait()
    assert living.exit_code == 128 + signal.SIGTERM


def test_a_cancelled_run_writes_its_reports(lab: ClusterLab) -> None:
    lab.write(test_waits=waits())
    run = lab.on_slurm("test_waits.py", *SPAN)
    run.await_file(lab.folder / "here")
    os.kill(_client(run), signal.SIGTERM)
    run.wait()
    assert run.exit_code == 128 + signal.SIGTERM, run.output
    assert run.result("test_before[4").outcome is Outcome.PASSED
    result = run.result("test_waits[4")
    assert result.outcome is Outcome.ERROR
    assert "cancelled" in result.message, result.message
    assert (run.results / "junit.xml").exists()


def test_the_time_limit_of_a_job(lab: ClusterLab) -> None:
    """Slurm ends a job at its limit, which it keeps in minutes: it is told to shorten the limit to now."""
    lab.write(test_waits=waits(limit_s=300, steps=3000))
    run = lab.on_slurm("test_waits.py", *SPAN)
    run.await_file(lab.folder / "here")
    done = lab.cluster.on_login(
        "scontrol", "update", f"jobid={lab.cluster.jobs()[0].split()[0]}", "timelimit=0:01"
    )
    assert done.returncode == 0, done.stderr
    run.wait(150)
    assert_lost(run, "time limit: ", "--job-limit")


def test_a_job_that_is_preempted(lab: ClusterLab) -> None:
    lab.write(test_waits=waits())
    run = lab.on_slurm("test_waits.py", *SPAN)
    run.await_file(lab.folder / "here")
    urgent = lab.cluster.on_login("srun", "-J", "other", "-p", "urgent", "-N2", "--exclusive", "true")
    assert urgent.returncode == 0, urgent.stderr
    run.wait()
    assert_lost(run, "preempted: ")


def test_a_queue_that_is_full(lab: ClusterLab) -> None:
    with _busy(lab):
        lab.write(test_waits=waits())
        run = lab.on_slurm("test_waits.py", *SPAN, "--queue-limit", "4").wait()
    assert run.exit_code == 7, run.output
    message = run.result("test_waits[4").message
    assert "still waiting after 4 s (Resources)" in message, message
    assert "--queue-limit" in message


@contextlib.contextmanager
def _busy(lab: ClusterLab) -> Iterator[None]:
    blocker = subprocess.Popen(
        lab.cluster.command("srun", "-J", "other", "-N2", "--exclusive", "sleep", "60"),
        env={**os.environ, **lab.cluster.environment()},
        stderr=subprocess.DEVNULL,
    )
    try:
        _until(lambda: any("other RUNNING" in job for job in lab.cluster.jobs()))
        yield
    finally:
        blocker.terminate()
        blocker.wait(20)


def test_a_plan_asks_slurm_and_its_shards_are_submitted(lab: ClusterLab) -> None:
    """The fake GPUs of the cluster can be held and not used: the plan is for its processors."""
    lab.write(test_plan=PLANNED)
    plan = ("test_plan.py", "--device", "cpu", "--pool", "big:slurm:test", "--matrix", "-")
    planned = lab.start("plan", *plan).wait()
    assert planned.exit_code == 0, planned.output
    assert '"name":"big-1","pool":"big","labels":["big"],"shard":1,"launcher":"slurm","nodes":2' in (
        planned.output
    )
    run = lab.start(
        "run", "test_plan.py", "--device", "cpu", "--plan", "plan.json", "--shard", "1", "--retries", "1"
    ).wait()
    assert run.exit_code == 0, run.output
    (flaky,) = run.run.tests
    assert [attempt.outcome for attempt in flaky.attempts] == [Outcome.FAILED, Outcome.PASSED]
    assert {rank.node for rank in flaky.final.ranks} == {"n1", "n2"}


PLANNED = """
    from pathlib import Path
    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.nodes(2)
    def test_spans(world):
        first = not Path(f"been-{world.rank}").exists()
        Path(f"been-{world.rank}").touch()
        assert not first or world.rank == 0, "not yet"
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_on_one_node(world):
        dist.barrier()
"""


ON_THE_PAGE = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.nodes(2)
    def test_spans(world):
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_on_one_node(world):
        dist.barrier()
"""


@pytest.mark.parametrize(
    ("title", "runs"),
    [("Clusters: worlds that span nodes, and pools of GPU hosts", 3), ("Plans", 1)],
    ids=["runs", "plans"],
)
def test_the_commands_of_the_page(lab: ClusterLab, title: str, runs: int) -> None:
    """As they stand there; the fake GPUs can be held and not used, and of the suite one file is enough."""
    (lab.folder / "tests").mkdir()
    (lab.folder / "tests/test_page.py").write_text(textwrap.dedent(ON_THE_PAGE))
    ((typed, _),) = commands(blocks("docs/clusters.md", title))
    run = lab.types(typed, DISTTEST_DEVICE="cpu", PYTEST_ADDOPTS="-k 'test_buffers or test_page'").wait(300)
    assert run.exit_code == 0, run.output
    assert run.output.count("\npassed: ") == runs, run.output


def test_what_ranks_print_is_shown_while_they_run(lab: ClusterLab) -> None:
    run = lab.write(test_talks=TALKS).on_slurm("test_talks.py", "-k", "over_nodes", "-s")
    assert_heard_while_it_runs(run, lab.folder)


def _client(run: ClusterRun) -> int:
    """nsenter becomes the command: it is the same process."""
    return run.process.pid


def _until(holds: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
