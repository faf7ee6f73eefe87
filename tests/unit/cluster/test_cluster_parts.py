"""The pure parts of running on a cluster: jobs, lines, places, Slurm's words, verdicts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttest.errors import ProtocolError, SchedulerError, UsageError
from disttest.extras.cluster.client.cluster_session import jobs_at_once
from disttest.extras.cluster.client.node_verdict import (
    PartitionRecord,
    check_lease_result,
    judge_partitions,
    verdict,
)
from disttest.extras.cluster.node.assignment import find_assignment
from disttest.extras.cluster.protocol.fingerprint import disagreement
from disttest.extras.cluster.protocol.job import JobKind, JobShape, JobSpec, dead_names, new_run_id
from disttest.extras.cluster.protocol.launcher import Capacity, JobOutcome, JobState, LauncherOptions
from disttest.extras.cluster.protocol.wire import (
    LineReader,
    LineWriter,
    NodeDone,
    NodeNote,
    NodeReady,
    Versions,
)
from disttest.extras.cluster.schedulers.agent_command import travelling
from disttest.extras.cluster.schedulers.local import LocalLauncher
from disttest.extras.cluster.schedulers.pipes import room_for
from disttest.extras.slurm.submission import SlurmQueue, srun_arguments
from disttest.extras.slurm.words import (
    end_of,
    parse_capacity,
    parse_queue,
    parse_time,
    parse_version,
    refused_for_now,
    stuck,
)
from disttest.model import Cause, Outcome, RankEnd, RankRecord, TestCase, TestResult, WorldShape

POLICY = (
    "srun: error: Unable to allocate resources: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)
FULL = "srun: error: Slurm controller not responding, sleeping and retrying."
GREEN = {"end": RankEnd.REPORTED, "outcome": Outcome.PASSED}


def a_test(*, size: int = 4, nodes: int = 2, timeout_s: float = 60.0) -> TestCase:
    return TestCase(
        nodeid="test_a.py::test_a",
        slug="a",
        classname="test_a",
        name="test_a",
        file="test_a.py",
        line=1,
        suite="test_a",
        world=WorldShape(size=size, backend="gloo", nodes=nodes),
        timeout_s=timeout_s,
    )


def a_job(**changes: object) -> JobSpec:
    given = {
        "job_id": "j1",
        "run_id": new_run_id(),
        "kind": JobKind.WORLD,
        "shape": JobShape(nodes=2, ranks_per_node=2, gpus_per_node=1),
        "tests": (a_test(),),
        "targets": ("smoke",),
        "limit_s": 90.0,
    }
    return JobSpec(**{**given, **changes})


def share(node: int, *ranks: RankRecord) -> PartitionRecord:
    return PartitionRecord(nodeid="test_a.py::test_a", node=node, host=f"n{node + 1}", ranks=ranks)


def rank(number: int, **facts: object) -> RankRecord:
    return RankRecord(rank=number, **{**GREEN, **facts})


def test_a_job_survives_json() -> None:
    job = a_job(flags={"timeout": "3"}, worlds=((0,),), ports=(1, 2))
    assert msgspec.json.decode(msgspec.json.encode(job), type=JobSpec) == job


class TestLines:
    @pytest.mark.slow("hypothesis draws many examples")
    @given(st.lists(st.text(max_size=3000), max_size=5))
    def test_messages_of_two_nodes_arrive_whole_however_their_lines_mix(self, texts: list[str]) -> None:
        writers, reader = [LineWriter(0), LineWriter(1)], LineReader()
        said = [NodeNote(message=text.encode("utf-8", "replace").decode()) for text in texts]
        streams = [
            b"".join(writer.lines(msgspec.json.encode(m)) for m in said).splitlines() for writer in writers
        ]
        mixed = [line for pair in zip(*streams, strict=True) for line in pair]
        heard = [message for line in mixed for message in reader.feed(line)]
        for node in (0, 1):
            assert [message for at, message in heard if at == node] == said

    def test_a_lost_line_is_an_error_with_the_nodes_number(self) -> None:
        lines = LineWriter(3).lines(msgspec.json.encode(NodeNote(message="x" * 5000))).splitlines()
        reader = LineReader()
        assert list(reader.feed(lines[0])) == []
        with pytest.raises(ProtocolError, match="node 3: line 2 came in place of line 1"):
            list(reader.feed(lines[2]))

    def test_what_others_print_is_not_ours(self) -> None:
        assert list(LineReader().feed(b"srun: warning")) == []

    def test_no_line_is_longer_than_slurm_carries_whole(self) -> None:
        lines = LineWriter(999).lines(msgspec.json.encode(NodeDone(reason="é" * 9000))).splitlines()
        assert max(map(len, lines)) < 1000


class TestPlace:
    SLURM = {
        "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURMD_NODENAME": "n2",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "CUDA_VISIBLE_DEVICES": "0,3",
    }

    def test_slurms_variables(self) -> None:
        place = find_assignment(self.SLURM)
        assert (place.scheduler, place.node, place.nodes, place.host) == ("slurm", 1, 2, "n2")
        assert (place.gpus, place.address, place.interface) == (("0", "3"), "127.0.0.1", "lo")

    @pytest.mark.parametrize("value", ["", "NoDevFiles", "void"])
    def test_no_gpus(self, value: str) -> None:
        assert find_assignment({**self.SLURM, "CUDA_VISIBLE_DEVICES": value}).gpus == ()

    @pytest.mark.parametrize(
        ("environ", "words"),
        [
            ({}, "no scheduler has started this agent"),
            ({"SLURM_NODEID": "0"}, "is None, which is not a number"),
            ({"SLURM_NODEID": "2", "SLURM_NNODES": "2"}, "is not a node of 2"),
        ],
    )
    def test_nonsense(self, environ: dict[str, str], words: str) -> None:
        with pytest.raises(UsageError, match=words):
            find_assignment(environ)


class TestVerdict:
    END = JobOutcome(state=JobState.NODE_LOST, reason="Node failure on n2", exit_code=0)

    def judged(self, *shares: PartitionRecord, end: JobOutcome | None = None) -> TestResult:
        return judge_partitions(a_test(), shares, end, job_id="j1", hosts=("n1", "n2"))

    def test_every_rank_green_is_a_pass(self) -> None:
        result = self.judged(share(0, rank(0), rank(1)), share(1, rank(2), rank(3)))
        assert result.outcome is Outcome.PASSED
        assert [record.node for record in result.ranks] == ["n1", "n1", "n2", "n2"]

    @pytest.mark.parametrize("code", [0, 1, None])
    def test_a_missing_record_is_the_machines_fault_whatever_the_exit_code(self, code: int | None) -> None:
        end = msgspec.structs.replace(self.END, exit_code=code)
        result = self.judged(share(0, rank(0), rank(1)), end=end)
        assert (result.outcome, result.cause) == (Outcome.ERROR, Cause.INFRASTRUCTURE)
        assert result.message == "ranks 2, 3 of 4 on node n2 left no record: node lost: Node failure on n2"

    def test_ranks_that_took_all_the_memory_are_the_tests_fault(self) -> None:
        end = JobOutcome(state=JobState.OUT_OF_MEMORY, reason="pod p on node n2: OOMKilled", exit_code=137)
        result = self.judged(share(0, rank(0), rank(1)), end=end)
        assert (result.outcome, result.cause) == (Outcome.FAILED, Cause.TEST)
        assert result.message.endswith("left no record: out of memory: pod p on node n2: OOMKilled")

    def test_a_single_missing_rank(self) -> None:
        result = self.judged(share(0, rank(0), rank(1)), share(1, rank(3)), end=self.END)
        assert result.message.startswith("rank 2 of 4 on node n2 left no record")

    def test_the_earliest_red_record_is_the_culprit(self) -> None:
        early = rank(3, phase="call", outcome=Outcome.FAILED, message="boom", failed_after_s=1.0)
        late = rank(0, outcome=Outcome.FAILED, message="bang", failed_after_s=2.0)
        result = self.judged(share(0, late, rank(1)), share(1, rank(2), early))
        assert (result.culprit, result.cause) == (3, Cause.TEST)
        assert result.message == "rank 3 of 4 failed: boom [rank 3 is on node n2]"

    def test_a_red_record_beside_a_missing_one_is_named_and_does_not_excuse_it(self) -> None:
        red = rank(0, outcome=Outcome.FAILED, message="boom", failed_after_s=1.0)
        result = self.judged(share(0, red, rank(1)), end=self.END)
        assert (result.cause, result.culprit) == (Cause.INFRASTRUCTURE, 0)
        assert result.notes == ("rank 0 on n1: boom",)

    def test_a_test_that_was_cut_short_says_why(self) -> None:
        ended = {"end": RankEnd.KILLED, "outcome": None, "phase": "call"}
        told = msgspec.structs.replace(
            share(0, rank(0, **ended), rank(1, **ended)), cancelled="the run was cancelled"
        )
        result = self.judged(told, share(1, rank(2, **ended), rank(3, **ended)))
        assert result.outcome is Outcome.ERROR
        assert "did not finish" in result.message
        assert "the run was cancelled" in result.message

    def test_a_rank_that_noticed_the_cancellation_of_its_peers_is_no_culprit(self) -> None:
        ended = {"end": RankEnd.KILLED, "outcome": None, "phase": "call"}
        symptom = {"outcome": Outcome.FAILED, "message": "Connection closed by peer", "failed_after_s": 1.0}
        told = msgspec.structs.replace(
            share(0, rank(0, **ended), rank(1, **ended)), cancelled="the run was cancelled"
        )

        noticed = self.judged(told, share(1, rank(2, **symptom), rank(3, **ended)))
        failed = self.judged(told, share(1, rank(2, **{**symptom, "message": "boom"}), rank(3, **ended)))

        assert (Outcome.ERROR, None) == (noticed.outcome, noticed.culprit)
        assert "the run was cancelled" in noticed.message
        assert (Outcome.FAILED, 2) == (failed.outcome, failed.culprit)

    def test_peers_of_a_node_that_the_scheduler_ended_are_no_culprits(self) -> None:
        killed = {"end": RankEnd.KILLED, "outcome": None, "phase": "call"}
        ended = msgspec.structs.replace(
            share(0, rank(0, **killed), rank(1, **killed)), cancelled="SIGTERM", by_scheduler=True
        )
        red = rank(2, outcome=Outcome.FAILED, message="boom", failed_after_s=1.0)
        end = JobOutcome(state=JobState.EVICTED, reason="pod p on node n1: it was deleted")
        result = self.judged(ended, share(1, red, rank(3)), end=end)
        assert (result.outcome, result.cause) == (Outcome.ERROR, Cause.INFRASTRUCTURE)
        assert result.message == f"ranks 0, 1 of 4 on node n1 left no record: {end}"
        assert result.notes == ("rank 2 on n2: boom",)

    @pytest.mark.parametrize("lost_all", [True, False])
    def test_records_that_come_after_the_job_was_given_up_blame_no_rank(self, *, lost_all: bool) -> None:
        """The client gave up since node n2 was silent; its cancellation woke that node, whose ranks had lost their peers."""
        killed = {"end": RankEnd.KILLED, "outcome": None, "phase": "call"}
        symptom = {"outcome": Outcome.FAILED, "message": "Connection closed by peer", "failed_after_s": 8.1}
        healthy = msgspec.structs.replace(
            share(0, rank(0, **killed), rank(1, **killed)), cancelled=str(self.END), given_up=True
        )
        other = (
            {}
            if lost_all
            else {"outcome": Outcome.FAILED, "message": "ValueError: boom", "failed_after_s": 1.0}
        )
        lost = msgspec.structs.replace(
            share(1, rank(2, **symptom), rank(3, **(other or symptom))), given_up=True
        )

        result = self.judged(healthy, lost, end=self.END)

        assert (result.outcome, result.cause) == (Outcome.ERROR, Cause.INFRASTRUCTURE)
        assert str(self.END) in result.message
        assert (None if lost_all else 3) == result.culprit
        assert (() if lost_all else ("rank 3 on n2: ValueError: boom",)) == result.notes

    def test_a_node_without_records_is_named_after_the_job_was_given_up(self) -> None:
        killed = {"end": RankEnd.KILLED, "outcome": None, "phase": "call"}
        healthy = msgspec.structs.replace(
            share(0, rank(0, **killed), rank(1, **killed)), cancelled=str(self.END), given_up=True
        )

        result = self.judged(healthy, end=self.END)

        assert f"ranks 2, 3 of 4 on node n2 left no record: {self.END}" == result.message
        assert [0, 1] == [record.rank for record in result.ranks]

    @pytest.mark.parametrize("by_scheduler", [True, False])
    def test_peers_that_were_ended_before_they_noticed_leave_the_word_to_the_scheduler(
        self, by_scheduler: bool
    ) -> None:
        killed = {"end": RankEnd.KILLED, "outcome": None, "phase": "call"}
        first = msgspec.structs.replace(
            share(0, rank(0, **killed), rank(1, **killed)), cancelled="SIGTERM", by_scheduler=True
        )
        second = msgspec.structs.replace(
            share(1, rank(2, **killed), rank(3, **killed)),
            cancelled="SIGTERM" if by_scheduler else "",
            by_scheduler=by_scheduler,
        )
        end = JobOutcome(state=JobState.EVICTED, reason="pod p on node n1: it was deleted")

        assert str(end) in self.judged(first, second, end=end).message
        before_the_end = self.judged(first, second).message
        assert "SIGTERM" in before_the_end

    def test_a_symptom_of_a_lost_node_accuses_nobody(self) -> None:
        red = rank(0, outcome=Outcome.FAILED, message="Connection closed by peer", failed_after_s=1.0)
        assert self.judged(share(0, red, rank(1)), end=self.END).culprit is None

    def test_a_rank_that_notices_the_end_of_a_hang_is_no_culprit(self) -> None:
        hung = {"end": RankEnd.KILLED, "outcome": None, "hung": True, "phase": "call"}
        late = rank(3, outcome=Outcome.FAILED, message="Connection reset by peer", failed_after_s=60.1)
        result = self.judged(share(0, rank(0, **hung), rank(1, **hung)), share(1, rank(2, **hung), late))
        assert result.outcome is Outcome.FAILED
        assert result.culprit is None
        assert "timed out" in result.message

    def test_a_whole_job_without_records(self) -> None:
        (result,) = verdict(a_job(), (), self.END)
        assert result.message == "no rank left a record: node lost: Node failure on n2"

    def test_a_later_record_of_a_node_replaces_the_earlier(self) -> None:
        worse = share(1, rank(2, end=RankEnd.SIGNALLED, outcome=None, message="died"), rank(3))
        (result,) = verdict(a_job(), (share(0, rank(0), rank(1)), share(1, rank(2), rank(3)), worse), None)
        assert result.culprit == 2

    def test_a_lease_that_says_passed_without_records_is_not_believed(self) -> None:
        test = a_test(size=2, nodes=1)
        said = TestResult(nodeid=test.nodeid, outcome=Outcome.PASSED, ranks=(rank(0),))
        result = check_lease_result(test, said)
        assert (result.outcome, result.cause) == (Outcome.ERROR, Cause.INFRASTRUCTURE)
        whole = msgspec.structs.replace(said, ranks=(rank(0), rank(1)))
        assert check_lease_result(test, whole) is whole


class TestSlurmsWords:
    def test_capacity_is_what_works_of_the_default_partition(self) -> None:
        text = "2|gpu:a100:8(S:0-1)|64|idle|1-00:00:00|gpu*\n1|gpu:8|64|down*|1:00|gpu*\n9|(null)|4|idle|1:00|cpu\n"
        capacity = parse_capacity(text, "slurm 23.11")
        assert (capacity.nodes, capacity.gpus_per_node, capacity.cpus_per_node) == (2, 8, 64)
        assert capacity.longest_job_s == 86_400

    def test_no_node_works(self) -> None:
        with pytest.raises(SchedulerError, match="Slurm has no working node"):
            parse_capacity("1|gpu:8|64|drain|1:00|gpu*\n", "slurm")

    @pytest.mark.parametrize(
        ("text", "seconds"), [("30:00", 1800), ("1:00:00", 3600), ("2-00:00:01", 172_801), ("5", 5)]
    )
    def test_times(self, text: str, seconds: float) -> None:
        assert parse_time(text) == seconds

    def test_versions(self) -> None:
        assert parse_version("slurm-wlm 22.05.8") == (22, 5)
        with pytest.raises(SchedulerError, match=r"needs Slurm 20\.11"):
            parse_version("slurm 19.05.5")
        with pytest.raises(SchedulerError, match="not a version"):
            parse_version("command of another kind")

    @pytest.mark.parametrize(
        ("line", "state"),
        [
            ("7|PENDING|PartitionTimeLimit||name", JobState.REJECTED),
            ("7|PENDING|JobHeldAdmin||name", JobState.HELD),
            ("7|PENDING|AssocMaxNodePerJobLimit||name", JobState.REJECTED),
            ("7|PENDING|AssocMaxGRESPerJob||name", JobState.REJECTED),
            ("7|PENDING|QOSMaxCpuPerNode||name", JobState.REJECTED),
            ("7|PENDING|QOSMaxWallDurationPerJobLimit||name", JobState.REJECTED),
            ("7|PENDING|QOSMinGRES||name", JobState.REJECTED),
            ("7|PENDING|AssocGrpNodeLimit||name", None),
            ("7|PENDING|QOSMaxJobsPerUserLimit||name", None),
            ("7|PENDING|QOSMaxGRESPerUser||name", None),
            ("7|PENDING|Resources||name", None),
            ("7|PENDING|Priority||name", None),
            ("7|RUNNING|None|n1|name", None),
        ],
    )
    def test_what_keeps_a_job_waiting_for_ever(self, line: str, state: JobState | None) -> None:
        (read,) = parse_queue(line)
        found = stuck(read)
        assert (found.state if found else None) is state
        assert found is None or found.advice

    @pytest.mark.parametrize(
        ("queue", "complaint", "state"),
        [
            ("7|NODE_FAIL|NodeFail|n1|name", "", JobState.NODE_LOST),
            ("7|TIMEOUT|TimeLimit|n1|name", "", JobState.TIME_LIMIT),
            ("7|PREEMPTED|None|n1|name", "", JobState.PREEMPTED),
            ("7|OUT_OF_MEMORY|None|n1|name", "", JobState.OUT_OF_MEMORY),
            (
                "7|CANCELLED|None|n1|name",
                "slurmstepd: error: *** STEP 7.0 CANCELLED DUE TO TIME LIMIT ***",
                JobState.TIME_LIMIT,
            ),
            ("7|COMPLETED|None|n1|name", "", JobState.COMPLETED),
            ("", "srun: error: Unable to allocate resources: Invalid account", JobState.REJECTED),
            (
                "7|FAILED|NonZeroExitCode||name",
                "docker: Error response from daemon: no",
                JobState.REJECTED,
            ),
            ("", "srun: unrecognized option '--qoss=a'", JobState.REJECTED),
            ("", "srun: error: Invalid --mem specification", JobState.REJECTED),
            ("", "slurmstepd: error: pyxis: failed to import docker image", JobState.REJECTED),
            (
                "",
                "srun: error: Unable to contact slurm controller (connect failure)",
                JobState.UNREACHABLE,
            ),
        ],
    )
    def test_how_a_job_ended(self, queue: str, complaint: str, state: JobState) -> None:
        seen = next(iter(parse_queue(queue)), None)
        end = end_of(seen, [complaint], 1 if complaint else 0, started=seen is not None)
        assert end.state is state
        assert end.advice or state in (JobState.COMPLETED, JobState.CANCELLED)

    @pytest.mark.parametrize(
        ("complaints", "said"),
        [
            ((FULL,), "Slurm controller not responding, sleeping and retrying: Slurm accepts no more jobs"),
            (("srun: error: AssocMaxSubmitJobLimit", POLICY), "AssocMaxSubmitJobLimit: the account"),
            (
                ("srun: error: QOSMaxSubmitJobPerUserLimit", POLICY),
                "QOSMaxSubmitJobPerUserLimit: the account",
            ),
            (("srun: error: MaxSubmitJobsPerAccount", POLICY), "MaxSubmitJobsPerAccount: the account"),
            (("srun: error: QOSMaxNodePerJobLimit", POLICY), ""),
            ((POLICY,), ""),
            ((FULL, "srun: error: Unable to allocate resources: Invalid account"), ""),
            ((FULL, "srun: job 7 queued and waiting for resources", "srun: Force Terminated JobId=7"), ""),
            ((), ""),
        ],
    )
    def test_what_is_refused_for_now(self, complaints: Sequence[str], said: str) -> None:
        assert refused_for_now(complaints).startswith(said)
        assert bool(refused_for_now(complaints)) == bool(said)

    @pytest.mark.parametrize(
        ("complaints", "reason", "advice"),
        [
            (("srun: error: QOSMaxNodePerJobLimit", POLICY), "QOSMaxNodePerJobLimit", "(--nodes)"),
            (("srun: error: QOSGrpMemLimit", POLICY), "QOSGrpMemLimit", "sacctmgr show qos"),
            ((POLICY,), "Unable to allocate resources: Job violates", "sacctmgr show qos"),
        ],
    )
    def test_a_limit_that_refuses_a_job(self, complaints: Sequence[str], reason: str, advice: str) -> None:
        end = end_of(None, complaints, 1, started=False)
        assert end.state is JobState.REJECTED
        assert end.reason.startswith(reason)
        assert advice in end.advice


class TestQueue:
    """One squeue answers all jobs that want to know at once."""

    class Clock:
        now_s = 100.0

        def __call__(self) -> float:
            return self.now_s

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        made: list[list[str]] = []

        def run(argv: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
            made.append(argv)
            said = f"{len(made)}|PENDING|Resources||a\n9|RUNNING|None|n1|b|c\nnonsense\n"
            return subprocess.CompletedProcess(argv, 0, said, "")

        monkeypatch.setattr("disttest.extras.slurm.submission.subprocess.run", run)
        return made

    def test_jobs_share_an_answer_that_is_fresh_enough_for_them(self, calls: list[list[str]]) -> None:
        clock = self.Clock()
        queue = SlurmQueue({}, clock)
        for name in ("a", "b|c", "gone", "a"):
            queue.line(name, fresh_s=0.5)
        assert len(calls) == 1
        clock.now_s += 4.0
        assert (queue.line("a", fresh_s=15.0) or calls).job_id == "1"  # type: ignore[union-attr]
        assert (queue.line("a", fresh_s=0.5) or calls).job_id == "2"  # type: ignore[union-attr]
        assert len(calls) == 2
        assert queue.line("gone", fresh_s=15.0) is None
        other = queue.line("b|c", fresh_s=15.0)
        assert other is not None
        assert (other.state, other.nodes) == (JobState.RUNNING, "n1")

    def test_a_queue_that_does_not_answer_is_no_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def run(argv: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
            raise subprocess.TimeoutExpired(argv, 1.0)

        monkeypatch.setattr("disttest.extras.slurm.submission.subprocess.run", run)
        queue = SlurmQueue({})
        assert queue.line("a", fresh_s=1.0) is None
        assert queue.final_line("a") is None


@pytest.mark.parametrize(
    ("asked", "nodes", "jobs"), [(0, 2, 16), (0, 60, 60), (0, 999, 128), (3, 60, 3), (500, 2, 500)]
)
def test_a_client_has_a_job_for_each_node_unless_asked_for_a_number(
    asked: int, nodes: int, jobs: int
) -> None:
    assert jobs_at_once(asked, Capacity(nodes=nodes, gpus_per_node=8, cpus_per_node=8, scheduler="")) == jobs


class TestRoom:
    """Each job is a process in pipes of the client's."""

    @pytest.mark.parametrize(
        ("soft", "hard", "room", "raised"),
        [
            (1024, 4096, 200, None),
            (512, 4096, 200, 864),
            (512, -1, 200, 864),
            (512, 600, 134, 600),
            (512, 512, 112, 512),
            (-1, -1, 200, None),
            (32, 32, 1, 32),
        ],
    )
    def test_the_limit_on_open_files_is_raised_for_what_is_asked(
        self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, room: int, raised: int | None
    ) -> None:
        set_to: list[tuple[int, int]] = []
        monkeypatch.setattr(
            "disttest.extras.cluster.schedulers.pipes.resource.getrlimit", lambda _: (soft, hard)
        )
        monkeypatch.setattr(
            "disttest.extras.cluster.schedulers.pipes.resource.setrlimit", lambda _, to: set_to.append(to)
        )
        assert room_for(200) == room
        assert set_to == ([] if raised is None else [(raised, hard)])


class TestSubmission:
    def test_arguments(self) -> None:
        argv = srun_arguments(a_job(), LauncherOptions(partition="gpu", account="ci"), ["PATH"], ("agent",))
        assert argv[0] == "srun"
        assert {
            "--nodes=2",
            "--ntasks=2",
            "--time=2",
            "--gres=gpu:1",
            "--partition=gpu",
            "--account=ci",
        } <= set(argv)
        assert f"--job-name={a_job().name}" in argv
        assert argv[-1] == "agent"

    VARIABLES = ("HOME", "LD_LIBRARY_PATH", "NCCL_DEBUG", "PATH", "PYTHONPATH")

    def test_pyxis_is_srun_with_an_image_and_its_mounts(self) -> None:
        job = a_job(image="nvcr.io#ours:1", directory="/repo")
        argv = srun_arguments(
            job, LauncherOptions(container="pyxis", mounts=("/data", "/a:/b:ro")), self.VARIABLES
        )
        assert argv[-6:] == [
            "--container-image=nvcr.io#ours:1",
            "--container-mounts=/repo:/repo,/data:/data,/a:/b:ro",
            "--container-workdir=/repo",
            "--no-container-mount-home",
            "disttest",
            "node-agent",
        ]
        # The image's own paths count, and a working directory of the node is none of the image.
        assert "--export=NCCL_DEBUG" in argv
        assert not any(word.startswith("--chdir") for word in argv)

    def test_docker_is_the_command_of_each_task(self) -> None:
        job = a_job(image="ours:1", directory="/repo")
        argv = srun_arguments(job, LauncherOptions(container="docker", mounts=("/data",)), self.VARIABLES)
        command = argv[argv.index("docker") :]
        assert argv[0] == "srun"
        assert "--export=HOME,NCCL_DEBUG,PATH" in argv
        assert command[:3] == ["docker", "run", "--rm"]
        assert {"--interactive", "--network=host", "--gpus=all", "--workdir=/repo"} <= set(command)
        assert {"--volume=/repo:/repo", "--volume=/data:/data"} <= set(command)
        assert f"--user={os.getuid()}:{os.getgid()}" in command
        passed = [word.removeprefix("--env=") for word in command if word.startswith("--env=")]
        assert passed[:2] == ["NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"]
        assert set(TestPlace.SLURM) <= set(passed)
        assert command[-2:] == ["ours:1", "node-agent"], "the image's entry point is disttest"

    def test_docker_without_gpus_and_with_a_command_of_its_own(self) -> None:
        job = a_job(image="ours:1", shape=JobShape(nodes=1, ranks_per_node=2))
        argv = srun_arguments(job, LauncherOptions(container="docker"), (), ("python3", "-m", "x"))
        assert "--gpus=all" not in argv
        assert argv[-4:] == ["--entrypoint=python3", "ours:1", "-m", "x"]

    def test_local_agents_have_no_image(self) -> None:
        with pytest.raises(SchedulerError, match="--image needs a scheduler that starts containers"):
            LocalLauncher({}).check(a_job(image="ours:1"))

    def test_secrets_stay_at_home(self) -> None:
        environ = {
            "PATH": "/bin",
            "GITHUB_TOKEN": "secret",
            "DISTTEST_NODE": "0",
            "EXTRA": "1",
            "NCCL_DEBUG": "INFO",
        }
        assert set(travelling(a_job(environment=("EXTRA",)), environ)) == {
            "PATH",
            "EXTRA",
            "NCCL_DEBUG",
            "PYTHONPATH",
        }

    def test_a_living_clients_jobs_are_not_leftovers(self) -> None:
        living = a_job().name
        machine, pid, _ = new_run_id().split("-")
        dead = f"disttest-{machine}-{pid}-t1-j4"
        elsewhere = "disttest-0000000000-1-t1-j1"
        older = f"disttest-{machine}-{pid}-1-j1"
        assert dead_names([living, dead, elsewhere, older, "other", "disttest-mine"]) == (dead,)


class TestNodesAgree:
    def ready(self, host: str, **changes: str) -> NodeReady:
        versions = {"disttest": "1", "python": "3.11", "torch": "2.13", **changes}
        digest = versions.pop("digest", "d")
        return NodeReady(host=host, at_s=0.0, versions=Versions(**versions), digest=digest)

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            ({}, ""),
            ({"disttest": "2"}, "disttest 2 on node n2, 1 on the client"),
            ({"torch": "2.12"}, "torch 2.13 on node n1, 2.12 on node n2"),
            ({"digest": "e"}, "the tests on node n2 are not those on the client"),
        ],
    )
    def test_both_sides_are_named(self, other: dict[str, str], words: str) -> None:
        client = Versions(disttest="1", python="3.12", torch="")
        said = disagreement(client, "d", {0: self.ready("n1"), 1: self.ready("n2", **other)})
        assert said.startswith(words)
        assert bool(said) == bool(words)

    def test_parameters_that_differ_under_one_id_are_shown(self) -> None:
        client = Versions(disttest="1", python="3.11", torch="2.13")
        first, second = (
            msgspec.structs.replace(self.ready(host), parameters={"t::a": "", "t::b": f"x={host!r}"})
            for host in ("n1", "n2")
        )
        same = msgspec.structs.replace(first, host="n3")

        assert disagreement(client, "d", {0: first, 1: same}) == ""
        assert disagreement(client, "d", {0: first, 1: same, 2: second}).startswith(
            "t::b is not the same test on all nodes: x='n1' on node n1, x='n2' on node n2"
        )
