"""Processes that really hold a GPU while runs lease it, look after it and prove it: their own, and those of others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_holder import HOLDS
from lab import Lab

from disttest.model import Cause, Outcome

AT_IMPORT = """
import pytest, torch, torch.distributed as dist

KEPT = torch.ones(4 << 20, device="cuda:0")

@pytest.mark.world_size(2)
@pytest.mark.fresh_world
@pytest.mark.parametrize("number", range(2))
def test_sum(world, number):
    x = torch.ones(4, device=world.device)
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 4
"""


def test_what_a_module_holds_at_import_is_the_runs_own(cuda_lab):
    """It is named with its line; the GPU stays in use, and is free after the run."""
    cuda_lab.write(test_keeps=AT_IMPORT)

    for ended in (cuda_lab.run("run", "."), cuda_lab.pytest(".")):
        assert ended.exit_code == 0, ended.output
        assert [Outcome.PASSED] * 2 == [test.final.outcome for test in ended.run.tests]
        assert "CUDA was initialised by torch.cuda._lazy_init at test_keeps.py:4" in ended.output
        assert "What this process holds of its GPU is missing to the ranks" in ended.output
        assert "quarantine" not in ended.output


STRANGER = """
import os, pathlib, sys, time, torch

def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)

wait_for("wanted")
os.environ["CUDA_VISIBLE_DEVICES"] = pathlib.Path("wanted").read_text()
x = torch.ones(16 << 20, device="cuda")
torch.cuda.synchronize()
pathlib.Path("held").touch()
wait_for("let-go")
"""
CONFTEST = """
import pathlib
from disttest.plugins.gpus import gpu_health

gpu_health.GPU_SLOW_RELEASE_S = 0.0  # any wait is worth a note
gpu_health.GPU_RELEASE_S = {limit_s}
look = gpu_health.gpu_leftover

def and_tell_the_stranger(*gpus, **more):
    left = look(*gpus, **more)
    if left:
        pathlib.Path({told!r}).touch()
    return left

gpu_health.gpu_leftover = and_tell_the_stranger
"""
HELD = """
import os, pathlib, time
import pytest, torch

pytestmark = [pytest.mark.fresh_world, pytest.mark.world_size(1)]

def test_leaves_its_gpu_to_a_stranger(world):
    pathlib.Path("wanted.new").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    os.rename("wanted.new", "wanted")
    while not pathlib.Path("held").exists():
        time.sleep(0.01)

def test_next(world):
    assert torch.ones(1, device=world.device).item() == 1
"""
CHILD = f"""
import subprocess, sys
import pytest, torch, torch.distributed as dist

pytestmark = [pytest.mark.fresh_world, pytest.mark.world_size(2)]

HOLDS = {HOLDS!r}

def test_leaves_a_child_on_its_gpu(world):
    if world.rank == 0:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert child.stdout.readline() == b"holds it\\n"
        sys.held = child  # nothing closes its pipe
    dist.barrier()

def test_next(world):
    x = torch.ones(1, device=world.device)
    dist.all_reduce(x)
    assert x.item() == 2
"""


@contextmanager
def stranger(lab: Lab) -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else's, which takes the GPU that a test names and holds it until it is told to let go."""
    with subprocess.Popen([lab.python, "-c", STRANGER], env=lab.environ, cwd=lab.folder) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_gpu_is_handed_on_when_a_stranger_lets_go_of_it(cuda, tmp_path):
    lab = cuda.lab(tmp_path, gpus=1)
    lab.write(conftest=CONFTEST.format(limit_s=200.0, told="let-go"), test_held=HELD)

    with stranger(lab) as process:
        ended = lab.run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert [Outcome.PASSED] * 2 == [test.final.outcome for test in ended.run.tests]
    (note,) = [note for note in ended.run.notes if "is still held by" in note]
    assert f"(pid {process.pid})" in note
    assert " s after its world had ended" in note
    assert "quarantine" not in ended.output


def test_one_that_a_stranger_keeps_is_in_quarantine_while_it_lives(cuda, tmp_path):
    lab = cuda.lab(tmp_path, gpus=1)
    lab.write(conftest=CONFTEST.format(limit_s=0.3, told="seen"), test_held=HELD)

    with stranger(lab) as process:
        ended = lab.run("run", ".")
    after = lab.run("run", ".", "--results", "after", "--", "-k", "next")

    assert ended.exit_code == 7, ended.output
    assert ended.result("test_leaves_its_gpu_to_a_stranger").outcome is Outcome.PASSED
    following = ended.result("test_next")
    assert (Outcome.ERROR, Cause.INFRASTRUCTURE) == (following.outcome, following.cause)
    assert f"(pid {process.pid})" in following.message
    assert after.exit_code == 0, after.output


def test_what_a_test_leaves_on_its_gpu_is_killed_before_the_gpu_is_handed_on(cuda_lab):
    ended = cuda_lab.write(test_child=CHILD).run("run", ".")

    assert ended.exit_code == 0, ended.output
    assert [Outcome.PASSED] * 2 == [test.final.outcome for test in ended.run.tests]
    assert any("test_leaves_a_child_on_its_gpu" in note for note in ended.run.notes), ended.output
    assert "quarantine" not in ended.output


BREAKS = """
import os, pathlib, time
import pytest, torch

pytestmark = [pytest.mark.world_size(1), pytest.mark.fresh_world]

@pytest.fixture(autouse=True)
def noted(request):
    if os.environ["CUDA_VISIBLE_DEVICES"].endswith("0"):
        pathlib.Path(f"failed-{request.node.callspec.id}").touch()

@pytest.mark.parametrize("number", range(4))
def test_one(noted, world, number):
    if os.environ["CUDA_VISIBLE_DEVICES"].endswith("0"):
        pathlib.Path("broken").touch()
        torch.ones(1, device=world.device)
    while len(list(pathlib.Path().glob("failed-*"))) < 2:  # both failures are of the first GPU
        time.sleep(0.01)
    assert torch.ones(1, device=world.device).item() == 1
"""
ONLY_SAYS_SO = """
import pytest, torch

pytestmark = [pytest.mark.world_size(1), pytest.mark.fresh_world]

@pytest.mark.parametrize("number", range(2))
def test_one(world, number):
    raise RuntimeError("CUDA error: unspecified launch failure")
"""


def test_a_gpu_that_fails_its_tests_and_the_proof_is_used_no_more(cuda_lab):
    broken = cuda_lab.folder / "broken"

    ended = cuda_lab.write(test_breaks=BREAKS).run(
        "run", ".", EMULATED_CUDA_FAULTS=f"sticky device=0 error=719 when={broken}"
    )

    assert ended.exit_code == 0, ended.output
    assert [Outcome.PASSED] * 4 == [test.final.outcome for test in ended.run.tests]
    assert any("GPU 0" in note and "is in quarantine" in note for note in ended.run.notes)
    assert sorted(len(test.attempts) for test in ended.run.tests) == [1, 1, 2, 2]


def test_a_gpu_that_passes_the_proof_leaves_the_failures_to_the_tests(cuda, tmp_path):
    ended = cuda.lab(tmp_path, gpus=1).write(test_says=ONLY_SAYS_SO).run("run", ".")

    assert ended.exit_code == 1, ended.output
    assert {(Outcome.FAILED, Cause.TEST)} == {
        (test.final.outcome, test.final.cause) for test in ended.run.tests
    }
    assert "the preflight found nothing: these failures are the tests' own" in ended.output
