"""Which containers a launch may take for the leftovers of a dead one."""

from __future__ import annotations

import pytest

from disttest.extras.container.left_containers import (
    RunnerJob,
    job_of,
    make_labels,
    why_leftover,
)
from disttest.host.proc import ProcessIdentity, is_running, this_process

THEM = ProcessIdentity(boot="b", namespace="pid:[1]", pid=10, started=525)
ME = ProcessIdentity(boot="b", namespace="pid:[1]", pid=20, started=650)
ELSEWHERE = ProcessIdentity(boot="b", namespace="pid:[2]", pid=10, started=525)
JOB = RunnerJob(runner="r1", run="100", attempt="1", job="test")
NEXT = RunnerJob(runner="r1", run="101", attempt="1", job="test")


def why(
    labels: dict, *, me: ProcessIdentity = ME, job: RunnerJob = JOB, now_s: float = 0.0, alive: bool = False
) -> str:
    return why_leftover(labels, client=me, job=job, now_s=now_s, is_alive=lambda _pid, _started: alive)


def labels(client: ProcessIdentity = THEM, job: RunnerJob = JOB) -> dict:
    return make_labels(client, job, expires_at_s=1000)


def test_a_dead_launcher_leaves_a_leftover() -> None:
    assert why(labels()) == "its launcher, process 10, has ended"


def test_a_living_launcher_keeps_its_container_whatever_else() -> None:
    assert why(labels(), alive=True, job=NEXT, now_s=1e9) == ""


@pytest.mark.parametrize("asked", [(10, 525)])
def test_pid_and_start_time_are_asked_for(asked: tuple[int, int]) -> None:
    seen = []
    why_leftover(labels(), client=ME, job=JOB, now_s=0, is_alive=lambda *which: bool(seen.append(which)))
    assert seen == [asked]


def test_another_pid_namespace_is_not_judged_by_pids() -> None:
    assert why(labels(ELSEWHERE)) == ""


def test_a_runner_that_has_moved_on_leaves_a_leftover() -> None:
    assert why(labels(ELSEWHERE), job=NEXT) == "runner r1 runs another job now"


def test_other_runners_and_unknown_ones_are_left_alone() -> None:
    assert why(labels(ELSEWHERE), job=RunnerJob(runner="r2", run="101")) == ""
    assert why(labels(ELSEWHERE, RunnerJob()), job=RunnerJob()) == ""


def test_time_runs_out_for_everyone_who_can_not_be_asked() -> None:
    assert why(labels(ELSEWHERE), now_s=1119) == ""
    assert why(labels(ELSEWHERE), now_s=1121) == "its time limit has passed"


@pytest.mark.parametrize("foreign", [{}, {"io.disttest.launch": "0"}, {"com.docker.compose.project": "x"}])
def test_containers_of_others_are_never_touched(foreign: dict) -> None:
    assert why(foreign, now_s=1e12) == ""


def test_labels_that_make_no_sense_are_no_license_to_kill_before_time() -> None:
    unreadable = {"io.disttest.launch": "1", "io.disttest.expires": "soon"}
    assert why(unreadable, now_s=1e9) == ""
    assert why(labels() | {"io.disttest.pid": "ten"}) == ""


def test_this_process_is_alive_and_not_another_of_its_pid() -> None:
    me = this_process()
    assert is_running(me.pid, me.started)
    assert not is_running(me.pid, me.started - 1)


def test_a_launcher_of_an_older_version_is_not_taken_for_dead() -> None:
    older = {name: value for name, value in labels().items() if not name.endswith(".ticks")}
    assert why(older | {"io.disttest.started": "1750000000.25"}) == ""


def test_the_job_is_githubs() -> None:
    environ = {"RUNNER_NAME": "r1", "GITHUB_RUN_ID": "100", "GITHUB_RUN_ATTEMPT": "1", "GITHUB_JOB": "test"}
    assert job_of(environ) == JOB
