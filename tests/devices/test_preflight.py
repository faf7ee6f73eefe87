"""The preflight on CPU devices, with real worker processes and faults planted in single devices."""

from __future__ import annotations

import select
import time
from pathlib import Path

import psutil
import pytest
from preflights import run_preflight

from disttest.plugins.gpus.preflight.messages import Level, Target
from disttest.plugins.gpus.preflight.prover import Prover
from disttest.plugins.gpus.preflight.steps import Bounds

WORKERS = Path(__file__).parents[1] / "support" / "workers"

# Long enough for a busy machine: what is healthy must not be late.
BOUNDS = Bounds(start=300.0, check=10.0, collective=15.0, grace=2.0, total=600.0)
GENEROUS = Bounds(start=300.0, check=10.0, collective=15.0, grace=8.0, total=600.0)

ON_DEVICE = {"context", "allocate", "copy", "matmul", "memory", "timing"}
TOGETHER = {"collective_rendezvous", "collective_broadcast", "collective_all_gather", "collective_all_reduce"}


def targets(count):
    return [Target(name=f"cpu:{index}", label=f"GPU {index} (GPU-{index})") for index in range(count)]


@pytest.fixture
def prove(monkeypatch):
    def run(count=3, *, faults="", bounds=BOUNDS, level=Level.QUICK, **environment):
        monkeypatch.setenv("PYTHONPATH", str(WORKERS))
        monkeypatch.setenv("DISTTEST_FAULTS", faults)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return run_preflight(targets(count), worker="faulty_worker", bounds=bounds, level=level)

    return run


def failures(result):
    return {(check.check, check.devices) for check in result.checks if not check.passed}


def test_healthy_devices_pass_every_check():
    result = run_preflight(targets(3))

    assert result.passed
    assert result.broken == {}
    for device in ("cpu:0", "cpu:1", "cpu:2"):
        assert {c.check for c in result.checks if c.devices == (device,)} == ON_DEVICE
    pairs = {c.devices for c in result.checks if c.check == "peer_copy"}
    assert pairs == {("cpu:0", "cpu:1"), ("cpu:0", "cpu:2"), ("cpu:1", "cpu:2")}
    assert {c.check for c in result.checks if len(c.devices) == 3} == TOGETHER
    assert all(c.value > 0 for c in result.checks if c.unit)


def test_one_device_has_no_pair_but_a_collective_of_one():
    result = run_preflight(targets(1))

    assert result.passed
    assert {c.check for c in result.checks} == ON_DEVICE | TOGETHER


FAULTS = (
    ("wrong_matmul", "matmul", "a matrix product is off by"),
    ("flaky_matmul", "matmul", "the same matrix product came out differently"),
    ("stuck_bit", "memory", "words changed after they were written"),
    ("slow_clock", "timing", "its clock measured"),
    ("hang@context", "context", "gave no answer within"),
    ("crash@allocate", "allocate", "SIGSEGV"),
    ("leave@copy", "copy", "the worker ended"),
    ("raise@copy", "copy", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
)
"""Each is planted in a device of its own, beside two healthy ones."""


@pytest.fixture(scope="module")
def many_faults():
    """One preflight of ten devices, of which the first eight are broken in different ways."""
    planted = " ".join(f"cpu:{index}={fault}" for index, (fault, _, _) in enumerate(FAULTS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(WORKERS))
        patch.setenv("DISTTEST_FAULTS", planted)
        return run_preflight(targets(len(FAULTS) + 2), worker="faulty_worker", bounds=BOUNDS)


@pytest.mark.parametrize(("index", "check", "words"), [(n, *rest) for n, (_, *rest) in enumerate(FAULTS)])
def test_the_broken_device_is_named(many_faults, index, check, words):
    theirs = [c for c in many_faults.checks if c.devices == (f"cpu:{index}",) and not c.passed]

    assert [c.check for c in theirs] == [check]
    assert words in theirs[0].message
    assert many_faults.broken[f"cpu:{index}"].startswith(f"{check} failed on GPU {index} (GPU-{index}): ")


def test_the_healthy_ones_go_on_as_a_pair_and_together(many_faults):
    healthy = ("cpu:8", "cpu:9")

    assert set(many_faults.broken) == {f"cpu:{index}" for index in range(len(FAULTS))}
    assert [c.devices for c in many_faults.checks if c.check == "peer_copy"] == [healthy]
    assert {c.check for c in many_faults.checks if c.devices == healthy and c.passed} == {
        "peer_copy",
        *TOGETHER,
    }


def test_no_healthy_device_is_left(prove):
    result = prove(2, faults="cpu:0=wrong_matmul cpu:1=wrong_matmul")

    assert set(result.broken) == {"cpu:0", "cpu:1"}


def test_a_bad_pair_is_named_and_one_end_is_blamed(prove):
    result = prove(DISTTEST_BAD_PAIR="cpu:0,cpu:2")

    assert failures(result) == {("peer_copy", ("cpu:0", "cpu:2"))}
    (reason,) = result.broken.values()
    assert "peer_copy failed on GPU 0 (GPU-0) → GPU 2 (GPU-2): bytes changed" in reason


def test_a_pair_that_hangs_is_named_and_the_rest_is_tried(prove):
    result = prove(DISTTEST_HANGING_PAIR="cpu:0,cpu:1")

    assert failures(result) == {("peer_copy", ("cpu:0", "cpu:1"))}
    assert {c.devices for c in result.checks if c.check == "peer_copy"} == {
        ("cpu:0", "cpu:1"),
        ("cpu:0", "cpu:2"),
        ("cpu:1", "cpu:2"),
    }


def test_full_level_copies_both_ways():
    result = run_preflight(targets(2), level=Level.FULL)

    assert {c.devices for c in result.checks if c.check == "peer_copy"} == {
        ("cpu:0", "cpu:1"),
        ("cpu:1", "cpu:0"),
    }


def test_wrong_numbers_in_a_collective_accuse_their_rank(prove):
    result = prove(faults="cpu:2=wrong_numbers")

    assert failures(result) == {("collective_broadcast", ("cpu:2",))}
    assert "expected 3 everywhere, got -1 to 3" in result.broken["cpu:2"]


@pytest.mark.parametrize("how", ["crash", "leave", "hang"])
def test_a_rank_that_goes_missing_in_a_collective_is_named(prove, how):
    # A long grace lets the victims speak and leave: they must not be taken for the dead.
    result = prove(faults=f"cpu:1={how}@all_gather", bounds=GENEROUS)

    assert failures(result) == {("collective_all_gather", ("cpu:1",))}
    assert set(result.broken) == {"cpu:1"}


def test_when_no_rank_can_be_singled_out_all_are_broken(prove):
    result = prove(2, faults="cpu:0=raise@rendezvous cpu:1=raise@rendezvous")

    assert failures(result) == {("collective_rendezvous", ("cpu:0", "cpu:1"))}
    assert set(result.broken) == {"cpu:0", "cpu:1"}


def test_nothing_is_left_behind(prove):
    before = set(Path("/dev/shm").iterdir())

    prove(faults="cpu:0=hang@copy cpu:1=crash@copy")

    assert not psutil.Process().children(recursive=True)
    assert set(Path("/dev/shm").iterdir()) <= before


def test_a_worker_that_does_not_start_is_a_finding(monkeypatch):
    result = run_preflight(targets(1), worker="disttest.no_such_module")

    assert set(result.broken) == {"cpu:0"}
    assert "No module named 'disttest.no_such_module'" in result.broken["cpu:0"]


@pytest.mark.parametrize(("thread", "imports"), [(False, 1), (True, 1 + 3)], ids=["forks", "new"])
def test_workers_are_forks_where_a_fork_lacks_nothing(monkeypatch, tmp_path, thread, imports):
    monkeypatch.setenv("PYTHONPATH", str(WORKERS))
    monkeypatch.setenv("DISTTEST_IMPORTS", str(tmp_path / "imports"))
    if thread:
        monkeypatch.setenv("DISTTEST_THREAD", "1")

    assert run_preflight(targets(2), worker="counted_worker", bounds=BOUNDS).passed

    assert len(set((tmp_path / "imports").read_text().split())) == imports


def wait_for(prover):
    poller = select.poll()
    for descriptor in prover.descriptors():
        poller.register(descriptor)
    result = None
    while result is None:
        poller.poll(200)
        result = prover.advance()
    return result


def test_a_proof_runs_beside_other_work(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(WORKERS))
    monkeypatch.setenv("DISTTEST_FAULTS", "cpu:1=wrong_matmul")
    with Prover(worker="faulty_worker", bounds=BOUNDS) as prover:
        prover.begin(targets(2))
        assert prover.advance() is None
        result = wait_for(prover)

    assert set(result.broken) == {"cpu:1"}
    assert "a matrix product is off by" in result.broken["cpu:1"]


def test_a_killed_proof_takes_its_workers_along(monkeypatch, tmp_path):
    monkeypatch.setenv("DISTTEST_HANGS_NOW", str(tmp_path / "hangs"))
    monkeypatch.setenv("PYTHONPATH", str(WORKERS))
    monkeypatch.setenv("DISTTEST_FAULTS", "cpu:0=hang@copy")
    prover = Prover(worker="faulty_worker")
    prover.begin(targets(1))
    (child,) = psutil.Process().children()
    while not (tmp_path / "hangs").exists():
        prover.advance()
        time.sleep(0.01)
    (worker,) = child.children()

    prover.kill()

    assert set(prover.advance().broken) == {"cpu:0"}
    assert worker.wait(timeout=60) is None or not worker.is_running()
