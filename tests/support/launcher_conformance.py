"""What a caller may rely on, whatever the scheduler is: the cases that every launcher has to pass.

A module of tests has a fixture ``make`` and a class ``Test…(LauncherConformance)``.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from thorough import is_wanted

from disttest.extras.cluster.protocol.job import JobKind, JobShape, JobSpec
from disttest.extras.cluster.protocol.launcher import Changed, JobEnded, JobRun, JobState, Launcher, Output
from disttest.extras.cluster.protocol.wire import (
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
    encode_order,
)
from disttest.runtime.messages.protocol import Message

STUB = str(Path(__file__).parent / "workers" / "node_stub.py")
LIMIT_S = 110.0
"""Many batches wait for each other on a busy machine; nothing else takes this long."""

Make = Callable[..., Launcher]
"""The mode of the stub and its values in, a launcher whose agents are such stubs out."""


def job(number: int = 1, *, nodes: int = 2, gpus: int = 0, ranks: int = 1) -> JobSpec:
    return JobSpec(
        job_id=f"j{number}",
        run_id=f"0123456789-{os.getpid()}-ab{number:x}",
        kind=JobKind.WORLD,
        shape=JobShape(nodes=nodes, ranks_per_node=ranks, gpus_per_node=gpus),
        tests=(),
        targets=(),
        limit_s=600,
    )


class Heard:
    """What a run has said, message by message."""

    def __init__(self, run: JobRun, *, limit_s: float = LIMIT_S) -> None:
        self.run = run
        self.limit_s = limit_s
        self.messages: list[tuple[int, FromNode]] = []
        self.ends: list[JobEnded] = []
        self.descriptions: list[Changed] = []

    def until_end(self, react: Callable[[Heard], None] = lambda _: None) -> Heard:
        reader, deadline = LineReader(), time.monotonic() + self.limit_s
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


class LauncherConformance:
    """Two nodes, one agent on each."""

    def test_capacity(self, make: Make) -> None:
        capacity = make("echo").capacity()
        assert capacity.nodes == 2
        assert capacity.cpus_per_node >= 1
        assert capacity.scheduler

    def test_every_node_hears_every_order_and_long_answers_arrive_whole(self, make: Make) -> None:
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

    def test_the_end_is_the_last_event_and_comes_once(self, make: Make) -> None:
        launched = make("exit", "0").start(job())
        launched.send(encode_order(TakeJob(job=job())))
        events = list(launched.events())
        assert [isinstance(event, JobEnded) for event in events].count(True) == 1
        assert isinstance(events[-1], JobEnded)
        assert events[-1].end.state is JobState.COMPLETED

    def test_a_description_has_the_name_and_the_scheduler(self, make: Make) -> None:
        launcher = make("exit", "0")
        launched = launcher.start(job(3))
        seen = launched.describe()
        assert (seen.scheduler, seen.name) == (launcher.name, job(3).name)
        launched.send(encode_order(TakeJob(job=job(3))))
        assert len(Heard(launched).until_end().ends) == 1

    def test_cancel_ends_it_and_says_why(self, make: Make) -> None:
        launched = make("echo").start(job())
        launched.send(encode_order(TakeJob(job=job())))

        def cancel_when_ready(heard: Heard) -> None:
            if len(heard.of(NodeReady)) == 2:
                launched.cancel("enough")
                launched.cancel("again")  # the first reason counts

        heard = Heard(launched).until_end(cancel_when_ready)
        assert heard.ends[0].end.state is JobState.CANCELLED
        assert "enough" in heard.ends[0].end.reason

    def test_what_is_sent_after_the_end_is_no_error(self, make: Make) -> None:
        launched = make("exit", "0").start(job())
        launched.send(encode_order(TakeJob(job=job())))
        Heard(launched).until_end()
        launched.send(encode_order(FinishJob()))

    def test_removing_what_is_gone_is_no_error(self, make: Make) -> None:
        launcher = make("echo")
        assert list(launcher.leftovers()) == []
        launcher.remove(["disttest-never-was"])


class ExitCodes:
    """For launchers whose agents are processes."""

    def test_an_exit_code_is_stored_and_decides_nothing(self, make: Make) -> None:
        launched = make("exit", "3").start(job())
        launched.send(encode_order(TakeJob(job=job())))
        (end,) = Heard(launched).until_end().ends
        assert end.end.state is JobState.COMPLETED
        assert end.end.exit_code == 3


class ExclusiveGPUs:
    """For schedulers of two nodes with two GPUs each: no GPU has two jobs at a time."""

    batches = 40 if is_wanted() else 12
    limit_s = LIMIT_S

    def test_mixed_batches_share_the_gpus_and_none_is_given_out_twice(self, make: Make) -> None:
        launcher = make("hold", "0.1")
        shapes = [(1, 1), (2, 1), (1, 2), (2, 2)]
        wanted = [shapes[number % len(shapes)] for number in range(self.batches)]
        with ThreadPoolExecutor(self.batches) as threads:
            holds = [
                threads.submit(_hold, launcher, at, *each, self.limit_s) for at, each in enumerate(wanted)
            ]
        spans = [span for hold in holds for span in hold.result()]
        assert len(spans) == sum(nodes * gpus for nodes, gpus in wanted)
        by_gpu: dict[str, list[tuple[float, float]]] = {}
        for gpu, start_s, end_s in spans:
            by_gpu.setdefault(gpu, []).append((start_s, end_s))
        assert len(by_gpu) == 4, by_gpu
        for gpu, held in by_gpu.items():
            for (_, end_s), (start_s, _) in itertools.pairwise(sorted(held)):
                assert end_s <= start_s, f"{gpu} held twice: {sorted(held)}"


def _hold(
    launcher: Launcher, number: int, nodes: int, gpus: int, limit_s: float
) -> list[tuple[str, float, float]]:
    """Hold GPUs with a job: which, from when, until when."""
    spec = job(number, nodes=nodes, gpus=gpus)
    launched = launcher.start(spec)
    launched.send(encode_order(TakeJob(job=spec)))
    heard = Heard(launched, limit_s=limit_s).until_end()
    ready = {node: message for node, message in heard.messages if isinstance(message, NodeReady)}
    until_s = {
        node: float(message.message) for node, message in heard.messages if isinstance(message, NodeNote)
    }
    assert len(ready) == len(until_s) == nodes, heard.ends
    assert all(len(each.gpus) == gpus for each in ready.values()), ready
    return [
        (f"{each.host} {gpu}", each.at_s, until_s[node]) for node, each in ready.items() for gpu in each.gpus
    ]
