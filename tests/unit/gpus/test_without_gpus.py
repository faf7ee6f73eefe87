"""Runs without the plugin of GPUs compute on the CPU, and refuse options that need more."""

from __future__ import annotations

import pytest

from disttest.errors import UsageError
from disttest.model import Batch, Isolation, Outcome, TestResult, WorldShape
from disttest.options.run import RunOptions, resolve_options
from disttest.planning.schedule import BatchScheduler
from disttest.plugin_manager import Plugins
from disttest.runtime.controller import devices
from disttest.runtime.controller.devices import Vacated, make_devices, this_machine


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = Plugins(["disttest.gpus"])
    monkeypatch.setattr(devices, "plugin_manager", lambda: plugins)


def test_the_processors_are_the_devices() -> None:
    made = make_devices(RunOptions(slots=3))

    assert ("cpu", 3, ["cpu:0", "cpu:1", "cpu:2"]) == (made.device, made.size, [s.name for s in made.slots])
    assert () == this_machine().hardware().gpus
    assert (0, "cpu") == (made.target_host().gpus, made.target_host().device)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"device": "cuda"}, "--device cuda"),
        ({"backend": "nccl"}, "--backend nccl"),
        ({"gpus": "2"}, "--gpus"),
    ],
)
def test_options_that_need_a_gpu_are_refused(options: dict[str, str], asked: str) -> None:
    with pytest.raises(UsageError, match=f"^{asked} needs a plugin"):
        make_devices(resolve_options(options))


def test_processors_are_handed_on_immediately_and_their_processes_keep_them() -> None:
    made, notes = make_devices(RunOptions(slots=2)), []
    scheduler = BatchScheduler(made.slots, clock=lambda: 0.0)
    health = made.health(scheduler, None, lambda *note: notes.append(note), None)  # type: ignore[arg-type]
    shape = WorldShape(size=1, backend="gloo", device="cpu")
    for name in "ab":
        scheduler.submit(Batch(batch_id=name, nodeids=(name,), shape=shape, isolation=Isolation.FRESH))
    slots = {start.batch.batch_id: start.slots for start in scheduler.due()}

    health.vacate(Vacated(batch_id="a", slots=slots["a"]))
    health.vacate(Vacated(batch_id="b", slots=slots["b"], last_test="test_b", survivors=(7,)))
    for name in "cd":
        scheduler.submit(Batch(batch_id=name, nodeids=(name,), shape=shape, isolation=Isolation.FRESH))

    assert [slots["a"]] == [start.slots for start in scheduler.due()]
    assert [("cpu:1: no longer used, because processes could not be killed: 7", "test_b")] == notes


def test_no_failure_is_the_fault_of_a_processor() -> None:
    made = make_devices(RunOptions(slots=1))
    health = made.health(BatchScheduler(made.slots, clock=float), None, print, None)  # type: ignore[arg-type]
    failed = TestResult(
        nodeid="test_a", outcome=Outcome.FAILED, started_at_s=0.0, message="CUDA error: unknown error"
    )

    assert not any(health.suspects(failed, made.slots) for _ in range(9))
