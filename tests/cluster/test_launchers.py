"""The launchers that need no more than this machine and a Slurm cluster, held to what all have to do."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from fake_scheduler import FakeScheduler
from launcher_conformance import STUB, ExclusiveGPUs, ExitCodes, Heard, LauncherConformance, Make, job
from slurm_cluster import SlurmCluster

from disttest.extras.cluster.protocol.launcher import JobState, Launcher, LauncherOptions, Output
from disttest.extras.cluster.protocol.wire import (
    CancelJob,
    FinishJob,
    NodeDone,
    NodeNote,
    NodeReady,
    TakeJob,
    ToNode,
    Versions,
    encode_order,
)
from disttest.extras.cluster.schedulers.local import LocalLauncher
from disttest.extras.slurm.scheduler import SlurmLauncher
from disttest.runtime.messages.protocol import Message

TOY = Path(__file__).parents[2] / "examples" / "plugins" / "hosts" / "disttest_hosts" / "scheduler.py"


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


@pytest.fixture(params=["fake", "local", "toy", "slurm"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    if request.param == "slurm":
        cluster: SlurmCluster = request.getfixturevalue("cluster")
        monkeypatch.setattr("disttest.host.process.subprocess.Popen", _on_login(cluster, "Popen"))
        monkeypatch.setattr("disttest.extras.slurm.scheduler.subprocess.run", _on_login(cluster, "run"))
        environ = {**os.environ, **cluster.environment()}

    def made(mode: str, *values: str, **options: object) -> Launcher:
        command = (sys.executable, STUB, mode, *values)
        if request.param == "fake":
            return FakeScheduler(fake_answer(mode))
        if request.param == "local":
            return LocalLauncher(os.environ, nodes=2, command=command)
        if request.param == "toy":
            stand_in = ("sh", "-c", 'shift; exec "$@"', "ssh")  # what ssh would run on the host
            return toy().HostsLauncher(os.environ, ["n1", "n2"], command, stand_in)  # type: ignore[no-any-return]
        return SlurmLauncher(environ, LauncherOptions(**options), command=command)

    return made


def _on_login(cluster: SlurmCluster, what: str) -> Callable[..., object]:
    """The same call, made on the login node: this process is not in the cluster's network."""
    import subprocess

    original = getattr(subprocess, what)

    def call(argv: list[str], **options: object) -> object:
        return original(cluster.command(*argv), **options)

    return call


def toy() -> ModuleType:
    """The scheduler of docs/schedulers.md."""
    spec = importlib.util.spec_from_file_location("hosts", TOY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_toy_is_short() -> None:
    assert len(TOY.read_text().splitlines()) < 155


class TestLaunchers(LauncherConformance):
    """All of them."""


@pytest.mark.parametrize("make", ["local", "toy", "slurm"], indirect=True)
class TestExitCodes(ExitCodes):
    """Those whose agents are processes."""


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
class TestGPUsOfSlurm(ExclusiveGPUs):
    """Many batches."""


def test_a_queue_that_does_not_answer_holds_up_no_line_of_the_job(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "asked")
    os.mkfifo(tmp_path / "never")
    programs = {
        "squeue": f"echo $$ > {tmp_path}/asked; exec cat < {tmp_path}/never",
        "srun": f"read pid < {tmp_path}/asked; echo asked by $pid; cat > /dev/null",
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    launcher = SlurmLauncher({**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    run = launcher.start(job())
    squeue = 0
    for event in run.events():
        if isinstance(event, Output):
            squeue = int(event.line.split()[-1])
            assert psutil.Process(squeue).is_running()  # it still asks, and the line has come
            os.kill(squeue, signal.SIGKILL)
            run.cancel("the test is over")
    assert squeue
