"""One suite for every launcher: what a caller may rely on, whatever the scheduler is."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_scheduler import FakeScheduler
from slurm_cluster import SlurmCluster

from disttest.cluster.protocol.job import JobKind, JobShape, JobSpec
from disttest.cluster.protocol.launcher import (
    Changed,
    JobEnded,
    JobRun,
    JobState,
    Launcher,
    LauncherOptions,
    Output,
)
from disttest.cluster.protocol.wire import (
    CancelJob,
    CloseWorld,
    FinishJob,
    FromNode,
    LineReader,
    NodeDone,
    NodeNote,
    NodeReady,
    OpenWorld,
    TakeJob,
    ToNode,
    Versions,
    encode_order,
)
from disttest.cluster.schedulers.local import LocalLauncher
from disttest.cluster.schedulers.slurm import SlurmLauncher
from disttest.runtime.messages.protocol import Message

STUB = str(Path(__file__).parents[1] / "support" / "workers" / "node_stub.py")
LIMIT_S = 110.0
"""Forty gangs wait for each other on a busy machine; nothing else takes this long."""

Make = Callable[..., Launcher]


def job(number: int = 1, *, nodes: int = 2, gpus: int = 0, ranks: int = 1) -> JobSpec:
    return JobSpec(
        job_id=f"j{number}",
        run_id=f"0123456789-{os.getpid()}-ab{number:x}",
        kind=JobKind.WORLD,
        shape=JobShape(nodes=nodes, ranks_per_node=ranks, gpus_per_node=gpus),
        tests=(),
        targets=(),
        limit_s=60,
    )


def fake_answer(mode: str) -> Callable[[int, ToNode], list[Message]]:
    def answer(node: int, order: ToNode) -> list[Message]:
        match order:
            case TakeJob():
                versions = Versions(disttest="0", python="0", torch="0")
                ready = NodeReady(host=f"fake{node}", at_s=0.0, versions=versions, digest="")
                return [ready, *([NodeDone()] if mode == "exit" else [])]
            case FinishJob() | CancelJob():
                return [NodeDone()]
        return [NodeNote(message=encode_order(order).decode())]

    return answer


@pytest.fixture(params=["fake", "local", "slurm"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    if request.param == "slurm":
        cluster: SlurmCluster = request.getfixturevalue("cluster")
        monkeypatch.setattr("disttest.host.process.subprocess.Popen", _on_login(cluster, "Popen"))
        monkeypatch.setattr("disttest.cluster.schedulers.slurm.subprocess.run", _on_login(cluster, "run"))
        environ = {**os.environ, **cluster.environment()}

    def made(mode: str, *values: str, **options: object) -> Launcher:
        command = (sys.executable, STUB, mode, *values)
        if request.param == "fake":
            return FakeScheduler(fake_answer(mode))
        if request.param == "local":
            return LocalLauncher(os.environ, nodes=2, command=command)
        return SlurmLauncher(environ, LauncherOptions(**options), command=command)

    return made


def _on_login(cluster: SlurmCluster, what: str) -> Callable[..., object]:
    """The same call, made on the login node: this process is not in the cluster's network."""
    import subprocess

    original = getattr(subprocess, what)

    def call(argv: list[str], **options: object) -> object:
        return original(cluster.command(*argv), **options)

    return call


class Heard:
    """What a run has said, message by message."""

    def __init__(self, run: JobRun) -> None:
        self.run = run
        self.messages: list[tuple[int, FromNode]] = []
        self.ends: list[JobEnded] = []
        self.descriptions: list[Changed] = []

    def until_end(self, react: Callable[[Heard], None] = lambda _: None) -> Heard:
        reader, deadline = LineReader(), time.monotonic() + LIMIT_S
        for event in self.run.events():
            assert time.monotonic() < deadline, self.messages
            match event:
                case Output(line=line):
                    self.messages += reader.feed(line)
                case JobEnded():
                    self.ends.append(event)
                case Changed():
                    self.descriptions.append(event)
            react(self)
        return self

    def of(self, kind: type[Message]) -> list[int]:
        return [node for node, message in self.messages if isinstance(message, kind)]


def test_capacity(make: Make) -> None:
    capacity = make("echo").capacity()
    assert capacity.nodes == 2
    assert capacity.cpus_per_node >= 1
    assert capacity.scheduler


def test_every_node_hears_every_order_and_long_answers_arrive_whole(make: Make) -> None:
    launched = make("echo").start(job())
    long = "x" * 50_000 + "é€"
    launched.send(encode_order(TakeJob(job=job())))
    launched.send(encode_order(CloseWorld(world=7)))
    launched.send(encode_order(TakeJob(job=job())))
    orders = [OpenWorld(world=number) for number in range(20)]
    for order in orders:
        launched.send(encode_order(order))
    launched.send(encode_order(CancelJob(reason=long)))
    heard = Heard(launched).until_end()
    assert sorted(heard.of(NodeDone)) == [0, 1]
    for node in (0, 1):
        told = [m.message.strip() for at, m in heard.messages if at == node and isinstance(m, NodeNote)]
        assert told == [encode_order(order).decode().strip() for order in [CloseWorld(world=7), *orders]]
    reasons = {m.reason for _, m in heard.messages if isinstance(m, NodeDone)}
    assert reasons <= {long, ""}
    assert len(heard.ends) == 1


def test_the_end_is_the_last_event_and_comes_once(make: Make) -> None:
    launched = make("exit", "0").start(job())
    launched.send(encode_order(TakeJob(job=job())))
    events = list(launched.events())
    assert [isinstance(event, JobEnded) for event in events].count(True) == 1
    assert isinstance(events[-1], JobEnded)
    assert events[-1].end.state is JobState.COMPLETED


def test_a_description_has_the_name_and_the_scheduler(make: Make) -> None:
    launcher = make("exit", "0")
    launched = launcher.start(job(3))
    seen = launched.describe()
    assert (seen.scheduler, seen.name) == (launcher.name, job(3).name)
    launched.send(encode_order(TakeJob(job=job(3))))
    assert len(Heard(launched).until_end().ends) == 1


def test_cancel_ends_it_and_says_why(make: Make) -> None:
    launched = make("echo").start(job())
    launched.send(encode_order(TakeJob(job=job())))

    def cancel_when_ready(heard: Heard) -> None:
        if len(heard.of(NodeReady)) == 2:
            launched.cancel("enough")
            launched.cancel("again")  # the first reason counts

    heard = Heard(launched).until_end(cancel_when_ready)
    assert heard.ends[0].end.state is JobState.CANCELLED
    assert "enough" in heard.ends[0].end.reason


def test_what_is_sent_after_the_end_is_no_error(make: Make) -> None:
    launched = make("exit", "0").start(job())
    launched.send(encode_order(TakeJob(job=job())))
    Heard(launched).until_end()
    launched.send(encode_order(FinishJob()))


def test_removing_what_is_gone_is_no_error(make: Make) -> None:
    launcher = make("echo")
    assert list(launcher.leftovers()) == []
    launcher.remove(["disttest-never-was"])


@pytest.mark.parametrize("make", ["local", "slurm"], indirect=True)
def test_an_exit_code_is_stored_and_decides_nothing(make: Make) -> None:
    launched = make("exit", "3").start(job())
    launched.send(encode_order(TakeJob(job=job())))
    (end,) = Heard(launched).until_end().ends
    assert end.end.state is JobState.COMPLETED
    assert end.end.exit_code == 3


# --- Slurm only


@pytest.mark.parametrize("make", ["slurm"], indirect=True)
@pytest.mark.parametrize(
    ("shape", "options", "state", "words"),
    [
        ({"nodes": 1, "gpus": 9}, {}, JobState.REJECTED, "configuration is not available"),
        ({"nodes": 5}, {}, JobState.REJECTED, "PartitionNodeLimit|node count|configuration|Node count"),
        ({"nodes": 1}, {"partition": "nope"}, JobState.REJECTED, "nvalid partition"),
        ({"nodes": 1}, {"extra": ("--hold",)}, JobState.HELD, "JobHeldUser"),
        ({"nodes": 1}, {"extra": ("--time=999",)}, JobState.REJECTED, "PartitionTimeLimit|[Tt]ime limit"),
    ],
    ids=["too many GPUs", "too many nodes", "no such partition", "held", "too long"],
)
def test_a_job_that_can_not_run_is_refused_with_slurms_words(
    make: Make, shape: dict[str, int], options: dict[str, object], state: JobState, words: str
) -> None:
    launched = make("echo", **options).start(job(**shape))
    launched.send(encode_order(TakeJob(job=job())))
    (end,) = Heard(launched).until_end().ends
    assert end.end.state is state, end
    import re

    assert re.search(words, end.end.reason), end
    assert end.end.advice


@pytest.mark.parametrize("make", ["slurm"], indirect=True)
def test_forty_mixed_gangs_share_the_gpus_and_none_is_given_out_twice(make: Make) -> None:
    shapes = [(1, 1), (2, 1), (1, 2), (2, 2)]
    launcher = make("hold", "0.1")
    held: list[tuple[str, str, float, float]] = []
    lock = threading.Lock()

    def gang(number: int) -> None:
        nodes, gpus = shapes[number % len(shapes)]
        spec = job(number, nodes=nodes, gpus=gpus)
        launched = launcher.start(spec)
        launched.send(encode_order(TakeJob(job=spec)))
        heard = Heard(launched).until_end()
        ready = {node: m for node, m in heard.messages if isinstance(m, NodeReady)}
        until = {node: float(m.message) for node, m in heard.messages if isinstance(m, NodeNote)}
        assert len(ready) == len(until) == nodes, heard.ends
        assert all(len(each.gpus) == gpus for each in ready.values()), ready
        with lock:
            for node, each in ready.items():
                held.extend((each.host, gpu, each.at_s, until[node]) for gpu in each.gpus)

    threads = [threading.Thread(target=gang, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(held) == 10 * (1 + 2 + 2 + 4)
    assert {(host, gpu) for host, gpu, _, _ in held} == {(n, g) for n in ("n1", "n2") for g in ("0", "1")}
    for host, gpu in {(host, gpu) for host, gpu, _, _ in held}:
        spans = sorted((start, end) for h, g, start, end in held if (h, g) == (host, gpu))
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end <= start, f"{host} GPU {gpu} held twice: {spans}"
