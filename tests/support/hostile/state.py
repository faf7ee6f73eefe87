"""What others have in shared memory while a run's tests leave theirs there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lab import Ended, Lab
from thorough import variants

from disttest.plugins.leftovers.segments import LEDGER
from hostile import Trial

SHM = Path("/dev/shm")
_alone = threading.Lock()
"""Held by trials that read which files are named: the notes name five, and trials run side by side."""
TESTS = """
    import os, pathlib, signal, time
    import multiprocessing.resource_tracker
    import multiprocessing.shared_memory
    import pytest

    KEPT = []

    def leave(name=None):
        segment = multiprocessing.shared_memory.SharedMemory(name, create=True, size=1 << 16)
        multiprocessing.resource_tracker.unregister(segment._name, "shared_memory")
        KEPT.append(segment)
        print("LEFT", segment.name)

    def is_noted(name):
        ledger = pathlib.Path("results", {ledger!r})
        return ledger.exists() and name in ledger.read_text()

    @pytest.mark.world_size(2)
    def test_good(world):
        for _ in range({looks}):
            time.sleep(0.05)

    each_round = pytest.mark.parametrize("round", range({rounds}))

    @each_round
    @pytest.mark.world_size(2)
    def test_leaves(world, round):
        leave()
        leave(f"torch_{{os.getpid()}}_{{round}}_0")

    @each_round
    @pytest.mark.fresh_world
    @pytest.mark.timeout(60)
    @pytest.mark.world_size(2)
    def test_is_killed(world, round):
        if world.rank == 1:
            leave()
            while not is_noted(KEPT[-1].name):  # whoever dies before that leaves what nobody can tell from a file of others
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    @each_round
    @pytest.mark.world_size(1)
    def test_writes_and_comes_back(world, round):
        path = {own!r} + str(round)
        with open(path, "wb") as file:
            file.write(b"mine")
        time.sleep(1.0)
        with open(path, "rb") as file:
            assert file.read() == b"mine"
        os.unlink(path)
"""
FOREIGN = """
    import multiprocessing.shared_memory, os, random, sys, time
    from multiprocessing import resource_tracker
    mark, chance, made = sys.argv[1], random.Random(int(sys.argv[2])), 0
    print("ready", flush=True)
    while os.getppid() == int(sys.argv[3]) and not os.path.exists(sys.argv[4]):
        kind = chance.choice(["psm_{}{:04x}", "torch_{}_{}", "nccl-{}{}", "sem.mp-{}{}", "data-{}-{}.bin"])
        name = kind.format(mark, made)
        with open("/dev/shm/" + name, "xb") as file:
            file.write(b"theirs" * chance.randint(1, 1000))
        with open("made", "a") as file:
            file.write(name + "\\n")
        made += 1
        time.sleep(chance.uniform(0.0, 0.2))
"""


def left_names(ended: Ended) -> set[str]:
    """What the tests of a run have said that they left."""
    logs = ended.results.rglob("rank*.log")
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return {line.split()[1] for line in lines if line.startswith("LEFT ")}


def run_beside_others(
    lab: Lab, *, runs: int = 2, rounds: int = 1, seed: int = 1
) -> tuple[list[str], list[str]]:
    """Runs side by side that leave shared memory, and a process that makes files there at random.

    Args:
        lab: where they run.
        runs: how many side by side.
        rounds: how often each of a run's tests is run.
        seed: of the process.

    Returns:
        Files of the process that are gone, and files of the runs' tests that are there still.
    """
    mark = uuid.uuid4().hex[:10]
    folders = [lab.folder / f"run-{number}" for number in range(runs)]
    with _files_of_others(lab, mark, seed) as made_by_others:
        labs = []
        for folder in folders:
            folder.mkdir()
            source = TESTS.format(
                own=f"/dev/shm/own-{mark}-{folder.name}", looks=10, rounds=rounds, ledger=LEDGER
            )
            labs.append(Lab(folder).write(test_x=source))
        ended = _run_together(labs, limit_s=240 * rounds)
        made = made_by_others()
        assert made, "the process made no file"
        for each in ended:
            bad = sorted(test.test.name for test in each.run.bad)
            assert bad == [f"test_is_killed[2xgloo-{number}]" for number in range(rounds)], each.output
            _accuses_nobody(each, mark)
        gone = [name for name in made if not (SHM / name).exists()]
        left = [name for each in ended for name in left_names(each) if (SHM / name).exists()]
        assert sum(len(left_names(each)) for each in ended) == 5 * runs * rounds
        return gone, left


@contextlib.contextmanager
def _files_of_others(lab: Lab, mark: str, seed: int) -> Iterator[Callable[[], list[str]]]:
    """A process that makes files at random, which go in the end; what is given ends it and tells their names."""
    stop, made = lab.folder / "stop", lab.folder / "made"
    made.touch()
    (lab.folder / "foreign.py").write_text(FOREIGN.replace("\n    ", "\n"))
    argv = [sys.executable, "foreign.py", mark, str(seed), str(os.getpid()), str(stop)]
    with subprocess.Popen(argv, cwd=lab.folder, stdout=subprocess.PIPE, text=True) as process:

        def end() -> list[str]:
            stop.touch()
            process.wait()
            return made.read_text().split()

        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            yield end
        finally:
            for name in end():
                (SHM / name).unlink(missing_ok=True)


def _run_together(labs: Sequence[Lab], limit_s: float) -> list[Ended]:
    """The runs of some laboratories side by side; those that do not end in time are cancelled."""
    started = [each.start("test_x.py", "--slots", "4") for each in labs]
    try:
        outputs = [process.communicate(timeout=limit_s)[0] for process in started]
    finally:
        for process in started:
            process.terminate()  # nothing, where it has ended
            process.wait()
    return [
        Ended(process.returncode, output, each.folder / "results")
        for each, process, output in zip(labs, started, outputs, strict=True)
    ]


def _accuses_nobody(ended: Ended, mark: str) -> None:
    """Files of others are told with the tests that ran then, never as left by one."""
    notes = [note for test in ended.run.tests for note in test.final.notes] + list(ended.run.notes)
    wrong = [note for note in notes if mark in note and ("was left by" in note or "removed" in note)]
    assert not wrong, wrong


def _files_of_others_stay(lab: Lab) -> None:
    with _alone:
        gone, left = run_beside_others(lab)

    assert gone == [], f"files of others were deleted: {gone}"
    assert left == [], f"what tests have left was not removed: {left}"


def _plain_copy_stays(lab: Lab) -> None:
    """``cp file /dev/shm/x`` in another shell."""
    name = f"copied-{uuid.uuid4().hex[:10]}"
    source = """
        import subprocess, pytest
        @pytest.mark.world_size(2)
        def test_innocent(world):
            import time
            if world.rank == 0:
                open("running", "w").close()
            while not __import__("os").path.exists("copied"):
                time.sleep(0.01)
    """
    with _alone:
        _copy_beside(lab.write(test_x=source), name)


def _copy_beside(lab: Lab, name: str) -> None:
    process = lab.start("test_x.py")
    try:
        _wait_for(lab.folder / "running", process)
        subprocess.run(["cp", "test_x.py", f"/dev/shm/{name}"], cwd=lab.folder, check=True)
        (lab.folder / "copied").touch()
        output, _ = process.communicate(timeout=120)
        ended = Ended(process.returncode, output, lab.folder / "results")
        assert ended.exit_code == 0, output
        assert (SHM / name).exists(), "a file of somebody else was deleted"
        notes = [str(note) for note in ended.run.notes if name in str(note)]
        assert len(notes) == 1 and "test_innocent[2xgloo] ran then" in notes[0], ended.run.notes
        assert "Their owner is not known, so they are kept" in notes[0]
        assert not ended.result("test_innocent").notes, "an innocent test is accused"
    finally:
        (SHM / name).unlink(missing_ok=True)


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    import time

    deadline_s = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline_s, process.stdout
        time.sleep(0.01)


def _temporary_files_are_gone(lab: Lab) -> None:
    source = """
        import os, shutil, pytest
        import torch.distributed as dist

        pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(3)]

        def test_hang(world):
            if world.rank == 0:
                shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
                dist.barrier()

        def test_next(world):
            dist.barrier()
    """
    lab.write(test_x=source)
    for rule, told in variants(
        ("fail", "rank 0 waits in barrier #1 (test_x.py:"), ("off", "rank 0 waits in barrier at test_x.py:")
    ):
        temporary = lab.folder / f"temporary-{rule}"
        temporary.mkdir()

        ended = lab.run("test_x.py", "--deadlock", rule, TMPDIR=str(temporary))

        hang = ended.result("test_hang")
        assert hang.outcome.is_bad and told in hang.message, hang.message
        assert not ended.result("test_next").outcome.is_bad, ended.output


_RUNS: tuple[tuple[str, str, Callable[[Lab], None]], ...] = (
    (
        "temporary-files-deleted",
        "A test that deletes the folder for temporary files and hangs is judged as any other, and so is the next.",
        _temporary_files_are_gone,
    ),
    (
        "shared-memory-of-others",
        "Two runs side by side remove what their own tests left, and nothing of a third process.",
        _files_of_others_stay,
    ),
    (
        "copy-into-shared-memory",
        "A file that somebody copies into shared memory stays, and no test is accused.",
        _plain_copy_stays,
    ),
)
TRIALS = tuple(Trial(id=name, claim=claim, run=run) for name, claim, run in _RUNS)
