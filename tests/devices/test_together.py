"""Detection, lease, scheduler, breaker, preflight and quarantine in one flow, as a controller puts them together.

Only the tests' outcomes are made up: on one GPU of four everything fails with a memory error.
"""

from __future__ import annotations

from pathlib import Path

import fake_driver as fakes
import pytest
from preflights import run_preflight

from disttest.errors import NotEnoughDevices
from disttest.model import Batch, Isolation, Outcome, TestResult, WorldShape
from disttest.plugins.gpus.breaker import Breaker, GiveUp, Prove, QuarantineDecision
from disttest.plugins.gpus.leases.lease import Leaser, Request
from disttest.plugins.gpus.preflight.steps import Bounds, targets_of

WORKERS = Path(__file__).parents[1] / "support" / "workers"
BOUNDS = Bounds(start=300.0, check=10.0, collective=15.0, total=600.0)


class Run:
    """A controller in miniature: batches on leased slots, one after another."""

    def __init__(self, detect, driver, directory, narrowest):
        self.machine = detect(driver)
        self.lease = Leaser(directory, lambda: detect(driver)).take(Request(count=4, who="run"))
        self.breaker = Breaker(self.lease.slots, narrowest=narrowest)
        self.proofs = 0

    def play(self, batches):
        """Node id -> (outcome, slots it ran on); None where it was not run."""
        results, waiting = {}, list(batches)
        while waiting:
            batch = waiting.pop(0)
            slots = self.breaker.slots[: batch.shape.size]
            bad = any(slot.name == "gpu:1" for slot in slots)
            result = TestResult(
                nodeid=batch.batch_id,
                outcome=Outcome.FAILED if bad else Outcome.PASSED,
                message="CUDA error: uncorrectable ECC error encountered" if bad else "",
            )
            results[batch.batch_id] = (result.outcome, tuple(slot.name for slot in slots))
            prove = self.breaker.observe(result, slots)
            if prove is not None:
                decision = self.settle(prove)
                waiting += [g for g in batches if g.batch_id in decision.again]
                if isinstance(decision, GiveUp):
                    return results | {g.batch_id: None for g in waiting}, decision
        return results, None

    def settle(self, prove: Prove):
        self.proofs += 1
        names = {slot.name for slot in prove.slots}
        targets = [t for t in targets_of(self.machine, compute="cpu") if t.name in names]
        proof = run_preflight(targets, worker="faulty_worker", bounds=BOUNDS)
        decision = self.breaker.proved(proof.broken)
        for slot in self.lease.slots:
            if isinstance(decision, QuarantineDecision | GiveUp) and slot.name in decision.broken:
                self.lease.quarantine(slot, decision.broken[slot.name])
        return decision


def batches(count, size=2):
    shape = WorldShape(size=size, backend="nccl", device="cuda")
    return [
        Batch(batch_id=f"t{n}", nodeids=(f"t{n}",), shape=shape, isolation=Isolation.FRESH)
        for n in range(count)
    ]


@pytest.fixture
def run(fake, detect, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(WORKERS))
    monkeypatch.setenv("DISTTEST_FAULTS", "gpu:1=wrong_matmul")
    driver = fake(fakes.eight_h100() | {"count": 4})
    yield lambda narrowest: Run(detect, driver, tmp_path / "leases", narrowest)


def test_the_bad_gpu_is_found_and_the_rest_of_the_run_is_green(run):
    controller = run(narrowest=2)

    results, gave_up = controller.play(batches(20))

    assert gave_up is None
    assert {outcome for outcome, _ in results.values()} == {Outcome.PASSED}
    assert {slots for _, slots in results.values()} == {("gpu:0", "gpu:2")}
    assert controller.proofs == 1
    assert [slot.name for slot in controller.lease.slots] == ["gpu:0", "gpu:2", "gpu:3"]


def test_the_next_run_does_not_get_the_bad_gpu(run):
    controller = run(narrowest=2)
    controller.play(batches(2))
    controller.lease.release()

    with pytest.raises(
        NotEnoughDevices, match=r"3 of 4 can be used: GPU 1 .* in quarantine: matmul failed on GPU 1"
    ):
        run(narrowest=2)


def test_when_too_few_are_left_the_rest_is_not_run(run):
    controller = run(narrowest=4)

    results, gave_up = controller.play(batches(1000, size=4))

    assert controller.proofs == 1
    assert sum(result is None for result in results.values()) == 1000
    assert gave_up.reason.startswith(f"not run: matmul failed on GPU 1 ({fakes.uuid(1)}, ")
    assert gave_up.reason.endswith("(3 of 4 needed devices are left)")
