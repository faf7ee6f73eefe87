"""The health of a run's slots, on a fake driver and a clock of its own; the preflight works on the CPU."""

from __future__ import annotations

import json
import os
import select
import time

import fake_driver as fakes
import msgspec
import psutil
import pytest

from disttest.errors import InfrastructureError, NotEnoughDevices, UsageError
from disttest.host.machine import CpuShare
from disttest.model import Batch, Isolation, Outcome, TestResult, WorldShape
from disttest.options.run import resolve_options
from disttest.planning.schedule import BatchScheduler
from disttest.plugins.gpus.gpu_health import GpuHealth
from disttest.plugins.gpus.leases.lease import Leaser
from disttest.plugins.gpus.leases.quarantine import QuarantineNotes
from disttest.plugins.gpus.limits import GPU_RELEASE_S
from disttest.plugins.gpus.run_gpus import GpuDevices
from disttest.runtime.controller.devices import Vacated

GIB = 1 << 30
SUSPICIOUS = "CUDA error: unspecified launch failure"


class Run:
    """The controller's part: batches on the slots of a lease, and what device health says."""

    def __init__(self, devices):
        self.devices = devices
        self.now_s = 0.0
        self.heard, self.notes = [], []
        self.scheduler = BatchScheduler(devices.slots, clock=lambda: self.now_s)
        self.device_health = GpuHealth(
            devices,
            self.scheduler,
            self,
            lambda *note: self.notes.append(note),
            devices.directory,
            clock=lambda: self.now_s,
        )

    def submit(self, *batches, size=1):
        shape = WorldShape(size=size, backend="nccl", device="cuda")
        for batch in batches:
            self.scheduler.submit(
                Batch(batch_id=batch, nodeids=(batch,), shape=shape, isolation=Isolation.FRESH)
            )

    def due(self):
        return {start.batch.batch_id: start.slots for start in self.scheduler.due()}

    def leave(self, batch, slots, **facts):
        self.device_health.vacate(Vacated(batch_id=batch, slots=slots, last_test=batch, **facts))

    def turn(self, *, in_use=(), until):
        """Let it work until something holds, while hardly any of its own time passes."""
        deadline_s = time.monotonic() + 240.0
        while time.monotonic() < deadline_s:
            self.device_health.advance(in_use)
            if until():
                return
            poller = select.poll()
            for descriptor in self.device_health.descriptors():
                poller.register(descriptor, select.POLLIN)
            poller.poll(20)
            self.now_s += 0.001
        pytest.fail(f"it never came to that: {self.heard} {self.notes}")

    def free(self):
        return sorted(state.slot.name for state in self.leaser().states() if not state.obstacle)

    def leaser(self):
        return Leaser(self.devices.directory, self.devices.look)

    def on_cleared(self):
        self.heard.append("cleared")

    def on_device_blamed(self, nodeids, reason):
        self.heard.append(("accused", tuple(nodeids), reason))

    def on_gave_up(self, nodeids, reason):
        self.heard.append(("gave up", tuple(nodeids), reason))


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "unset")  # put back at the end, whatever a lease makes of it
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    def make(driver, *, compute="cpu", **given):
        probe = {"library": str(driver.library), "compute": compute}
        monkeypatch.setenv("DISTTEST_PROBE", json.dumps(probe))
        return resolve_options({"lease_dir": str(tmp_path / "leases"), **given}, environ={})

    return make


@pytest.fixture
def run(options):
    made = []

    def make(driver, **given):
        devices = GpuDevices(options(driver, **given))
        devices.acquire("a run", say=lambda _: None)
        made.append(Run(devices))
        return made[-1]

    yield make
    for each in made:
        each.device_health.close()
        each.devices.release()


def failed(nodeid, message=SUSPICIOUS):
    return TestResult(nodeid=nodeid, outcome=Outcome.FAILED, message=message)


# --- handing on


def test_a_gpu_that_is_free_is_handed_on(fake, run):
    run = run(fake(fakes.plain(1)))
    run.submit("a", "b")
    slots = run.due()["a"]

    run.leave("a", slots)

    assert run.due() == {}
    run.turn(until=lambda: not run.device_health.busy)
    assert run.due() == {"b": slots}
    assert run.notes == []


def test_one_that_never_lets_go_is_in_quarantine_for_as_long(fake, run):
    driver = fake(fakes.plain(2))
    run = run(driver)
    run.submit("a", "b", "c")
    slots = run.due()["a"]
    driver.set({"gpu.0.processes": f"4242:{GIB}", "process.4242": "python"})
    run.leave("a", slots)
    run.turn(until=lambda: run.device_health._waiting and run.device_health._waiting[0].held)
    assert run.due() == {}

    run.now_s += GPU_RELEASE_S
    run.turn(until=lambda: not run.device_health.busy)

    label = f"GPU 0 ({fakes.uuid(0)}, {fakes.bus(0)})"
    held = f"{label} is still held by python (pid 4242)"
    assert run.notes == [(f"{held}, 10 s after its world had ended: it is in quarantine", "a")]
    assert run.due() == {}
    assert [slot.name for slot in run.devices.lease.slots] == ["gpu:1"]
    (state,) = [state for state in run.leaser().states(allow_busy=True) if state.slot.name == "gpu:0"]
    assert (state.obstacle, state.permanent) == (f"in quarantine: {held}", False)
    driver.set({"gpu.0.processes": None})
    assert run.free() == ["gpu:0"]


SLICE = "MIG-00000000-aaaa-bbbb-cccc-ddddeeeeffff"


def test_a_mig_slice_is_handed_on_when_its_own_processes_are_gone(fake, run):
    """What runs on the GPU's other slices is no matter; what is listed for this one is."""
    driver = fake(fakes.four_a100_mig() | {"gpu.0.mig.1.processes": f"7:{GIB}"})
    run = run(driver, gpus=SLICE)
    run.submit("a", "b")
    slots = run.due()["a"]
    driver.set({"gpu.0.mig.0.processes": f"4242:{GIB}", "process.4242": "python"})

    run.leave("a", slots)
    run.turn(until=lambda: run.device_health._waiting and run.device_health._waiting[0].held)
    assert run.due() == {}
    driver.set({"gpu.0.mig.0.processes": None})
    run.now_s += 0.2
    run.turn(until=lambda: not run.device_health.busy)

    assert run.due() == {"b": slots}
    assert run.notes == []


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (
            {"gpu.0.mig.0.processes": f"4242:{GIB}", "process.4242": "python"},
            "is still held by python (pid 4242)",
        ),
        (
            {"gpu.0.mig.0.memory_used": 3 * GIB},
            "has 3072 MiB more in use than before, by a process that cannot be seen",
        ),
    ],
)
def test_a_mig_slice_that_is_never_let_go_is_in_quarantine_and_the_others_are_not(fake, run, facts, why):
    driver = fake(fakes.four_a100_mig())
    run = run(driver, gpus="MIG-00000000,MIG-00000001")
    run.submit("a", "b", "c")
    starts = run.due()
    driver.set(facts)

    run.leave("a", starts["a"])
    run.leave("b", starts["b"])
    run.turn(until=lambda: any(entry.held for entry in run.device_health._waiting))
    run.now_s += GPU_RELEASE_S
    run.turn(until=lambda: not run.device_health.busy)

    label = f"MIG slice {SLICE} of GPU 0 ({fakes.uuid(0)}, {fakes.bus(0)})"
    assert run.notes == [(f"{label} {why}, 10 s after its world had ended: it is in quarantine", "a")]
    assert run.due() == {"c": starts["b"]}
    (state,) = [state for state in run.leaser().states(allow_busy=True) if state.slot.name == "gpu:0.0"]
    assert state.obstacle == f"in quarantine: {label} {why}"


def test_a_mig_slice_that_is_taken_away_is_used_no_more(fake, run):
    driver = fake(fakes.four_a100_mig())
    run = run(driver, gpus="MIG-00000000,MIG-00000001")
    run.submit("a", "b", "c")
    starts = run.due()
    driver.set({"gpu.0.mig.0.uuid": None})

    run.leave("a", starts["a"])
    run.turn(until=lambda: run.heard)

    gone = f"MIG slice {SLICE} of GPU 0 ({fakes.uuid(0)}, {fakes.bus(0)}) has vanished from the driver's list"
    assert run.heard == [("accused", (), gone)]
    assert run.device_health.broken == {"gpu:0.0": gone}


def test_slots_of_the_cpu_are_handed_on_without_asking_the_driver(fake, run):
    """CPU slot 0 has nothing to do with GPU 0, which somebody holds."""
    driver = fake(fakes.plain(1))
    run = run(driver)
    (slot,) = run.devices.machine.slots("cpu", 1)
    run.scheduler = run.device_health._scheduler = BatchScheduler(
        (*run.devices.slots, slot), clock=lambda: 0.0
    )
    for name in ("a", "b"):
        shape = WorldShape(size=1, backend="gloo")
        run.scheduler.submit(Batch(batch_id=name, nodeids=(name,), shape=shape, isolation=Isolation.FRESH))
    assert run.due() == {"a": (slot,)}
    driver.set({"gpu.0.processes": f"4242:{GIB}"})

    run.leave("a", (slot,))

    assert run.due() == {"b": (slot,)}
    assert run.device_health.suspects(failed("b"), (slot,)) is False
    run.leave("b", (slot,), survivors=(77,))
    assert [each.name for each in run.devices.lease.slots] == ["gpu:0"]
    assert run.notes == [("cpu:0: no longer used, because processes could not be killed: 77", "b")]


def test_an_answer_that_is_older_than_the_end_of_a_world_does_not_count(fake, run):
    driver = fake(fakes.plain(1))
    run = run(driver)
    run.submit("a")
    slots = run.due()["a"]
    run.device_health.begin()
    poller = select.poll()
    poller.register(run.device_health.descriptors()[0], select.POLLIN)
    poller.poll()  # the answer is there: nobody holds the GPU
    time.sleep(0.2)
    driver.set({"gpu.0.processes": f"4242:{GIB}"})

    run.leave("a", slots)
    run.turn(until=lambda: not run.device_health._waiting or run.device_health._waiting[0].held)

    assert run.device_health._waiting


def test_processes_of_others_do_not_count_where_gpus_are_shared(fake, run):
    driver = fake(fakes.plain(1))
    run = run(driver, allow_busy_gpus="true")
    run.submit("a")
    slots = run.due()["a"]
    driver.set({"gpu.0.processes": f"7:{GIB},8:{GIB}"})

    run.leave("a", slots, pids=(8,))
    run.turn(until=lambda: run.device_health._waiting and run.device_health._waiting[0].held)
    driver.set({"gpu.0.processes": f"7:{GIB}"})
    run.now_s += 0.2
    run.turn(until=lambda: not run.device_health.busy)

    assert run.device_health.broken == {}


def test_slots_of_processes_that_can_not_be_killed_are_not_used_and_not_unlocked(fake, run):
    run = run(fake(fakes.plain(2)))
    run.submit("a", "b", "c")
    slots = run.due()["a"]
    heir = os.dup(run.devices.lease._held[slots[0]]._descriptor)  # as a forked rank has it

    run.leave("a", slots, survivors=(77,))

    assert run.due() == {}
    assert run.notes == [("gpu:0: no longer used, because processes could not be killed: 77", "a")]
    assert [slot.name for slot in run.devices.lease.slots] == ["gpu:1"]
    assert run.free() == []
    os.close(heir)
    assert run.free() == ["gpu:0"]


# --- proving


def test_the_driver_s_own_word_needs_no_proof(fake, run):
    driver = fake(fakes.plain(2))
    run = run(driver)
    run.submit("a", "b", "c")
    starts = run.due()
    assert run.device_health.suspects(failed("a"), starts["a"])
    driver.set({"gpu.0.error": 15})

    run.leave("a", starts["a"])
    run.turn(until=lambda: run.heard)

    reason = f"GPU 0 ({fakes.uuid(0)}, {fakes.bus(0)}): GPU is lost"
    assert run.heard == [("accused", ("a",), reason)]
    assert run.due() == {}
    run.leave("b", starts["b"])
    run.turn(until=lambda: not run.device_health.busy)
    assert run.due() == {"c": starts["b"]}


def test_suspicion_of_another_gpu_outlives_that(fake, run):
    driver = fake(fakes.plain(3))
    run = run(driver)
    run.submit("a", "b", "c")
    starts = run.due()
    assert run.device_health.suspects(failed("b"), starts["b"])
    driver.set({"gpu.0.error": 15})

    run.leave("a", starts["a"])
    run.turn(until=lambda: run.heard)

    assert run.heard[0][:2] == ("accused", ())
    assert run.device_health.is_open("b")


def test_nothing_starts_on_suspected_gpus_and_healthy_ones_are_used_again(fake, run):
    run = run(fake(fakes.plain(2)))
    run.submit("a", "b", "c", "d")
    starts = run.due()
    run.device_health.suspects(failed("a"), starts["a"])
    assert run.device_health.suspects(failed("b"), starts["b"])

    run.leave("a", starts["a"])
    run.turn(in_use=["gpu:1"], until=lambda: not run.device_health._waiting)
    assert run.due() == {}
    assert run.device_health._prover is None, "a proof on a GPU that is in use says nothing"
    run.leave("b", starts["b"])
    run.turn(until=lambda: run.device_health._prover)
    prover = run.device_health._prover.pid
    run.turn(until=lambda: run.heard)

    assert run.heard == ["cleared"]
    assert not psutil.pid_exists(prover)
    assert not run.device_health.is_open("a")
    assert set(run.due()) == {"c", "d"}


def test_a_gpu_that_breaks_while_others_are_suspected_is_decided_on_with_them(fake, run):
    driver = fake(fakes.plain(3))
    run = run(driver)
    run.submit("a", "b", "c", "d")
    starts = run.due()
    run.device_health.suspects(failed("a"), starts["a"])
    run.device_health.suspects(failed("b"), starts["b"])
    driver.set({"gpu.2.error": 15})

    run.leave("c", starts["c"])
    run.turn(in_use=["gpu:0", "gpu:1"], until=lambda: not run.device_health._waiting)
    assert run.due() == {}, "the driver says that the only slot which is not suspected is broken"
    run.leave("a", starts["a"])
    run.leave("b", starts["b"])
    run.turn(until=lambda: run.heard)

    assert run.heard == [("accused", (), f"GPU 2 ({fakes.uuid(2)}, {fakes.bus(2)}): GPU is lost")]
    assert not run.device_health.is_open("a")
    assert [slot.name for slot in run.due()["d"]] == ["gpu:0"]


def test_a_proof_does_not_wait_for_ever(fake, run):
    run = run(fake(fakes.plain(2)))
    run.submit("a", "b")
    starts = run.due()
    run.device_health.suspects(failed("a"), starts["a"])
    run.device_health.suspects(failed("b"), starts["b"])
    run.leave("a", starts["a"])
    run.turn(in_use=["gpu:1"], until=lambda: not run.device_health._waiting)

    run.now_s += 10.0
    run.turn(in_use=["gpu:1"], until=lambda: run.heard)

    assert run.heard == ["cleared"]


def test_with_too_few_left_it_gives_up(fake, run):
    driver = fake(fakes.plain(2))
    run = run(driver)
    run.device_health.narrowest = 2
    run.submit("a", "b", size=2)
    starts = run.due()
    run.device_health.suspects(failed("a"), starts["a"])
    driver.set({"count": 1})

    run.leave("a", starts["a"])
    run.turn(until=lambda: run.heard)

    gone = f"GPU 1 ({fakes.uuid(1)}, {fakes.bus(1)}) has vanished from the driver's list"
    assert run.heard == [("gave up", ("a",), f"not run: {gone} (1 of 2 needed devices are left)")]
    assert [batch.batch_id for batch in run.scheduler.withdraw()] == ["b"]
    assert run.scheduler.idle


# --- which devices a run uses


@pytest.mark.parametrize(
    ("facts", "given", "visible", "slots"),
    [
        (fakes.plain(3), {}, None, ["gpu:0", "gpu:1", "gpu:2"]),
        (fakes.plain(3), {"gpus": "2"}, None, ["gpu:0", "gpu:1"]),
        (fakes.plain(3), {"slots": "2"}, None, ["gpu:0", "gpu:1"]),
        (fakes.plain(3), {"gpus": "device=2"}, None, ["gpu:2"]),
        (fakes.plain(3), {"gpus": f"{fakes.uuid(2)},{fakes.uuid(1)[:12]}"}, None, ["gpu:1", "gpu:2"]),
        (fakes.plain(3), {}, "2,0", ["gpu:0", "gpu:2"]),
        (fakes.plain(3), {"gpus": "none"}, None, ["cpu:0"]),
        (fakes.plain(3), {}, "", ["cpu:0"]),
        (fakes.plain(3) | {"gpu.1.error": 15}, {}, None, ["gpu:0", "gpu:2"]),
        (fakes.bridged_pairs(4) | {"gpu.0.error": 15}, {"gpus": "2"}, None, ["gpu:2", "gpu:3"]),
        (fakes.driver(0), {}, None, ["cpu:0"]),
    ],
)
def test_what_a_run_takes(fake, options, monkeypatch, facts, given, visible, slots):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = GpuDevices(options(fake(facts), **given))
    devices.acquire("a run", say=lambda _: None)

    assert [slot.name for slot in devices.slots][: len(slots)] == slots
    devices.release()


@pytest.mark.parametrize(
    ("facts", "visible", "order", "is_doubtful"),
    [
        ({"gpu.1.name": "NVIDIA L40"}, "1", "", True),
        ({"gpu.1.name": "NVIDIA L40"}, "1", "PCI_BUS_ID", False),
        ({"gpu.1.name": "NVIDIA L40"}, fakes.uuid(1), "", False),
        ({}, "1", "", False),
    ],
)
def test_a_number_may_mean_another_gpu_to_cuda(
    fake, options, monkeypatch, facts, visible, order, is_doubtful
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", order)

    notes = GpuDevices(options(fake(fakes.plain(2) | facts))).notes()

    assert is_doubtful == any(
        "CUDA_VISIBLE_DEVICES=1 was read in the order of the PCI bus" in note for note in notes
    )


@pytest.mark.parametrize(("pid", "size"), [(0, 1), (4242, 2)])
def test_a_run_does_without_what_is_broken_and_waits_for_what_is_held(fake, options, tmp_path, pid, size):
    driver = fake(fakes.plain(2))
    (tmp_path / "leases").mkdir()
    QuarantineNotes(tmp_path / "leases").add(fakes.uuid(1), "matmul failed", pid=pid)

    devices = GpuDevices(options(driver))

    assert devices.size == size
    left_out = [f"GPU {fakes.uuid(1)} is left out: in quarantine: matmul failed"]
    assert devices.notes() == ([] if pid else left_out)


@pytest.mark.parametrize(
    ("cores", "gpus", "given", "beside", "threads"),
    [
        (96, 8, {}, 48, 6),
        (16, 1, {}, 8, 8),
        (8, 4, {}, 4, 1),
        (8, 6, {}, 2, 1),
        (8, 8, {}, 1, 1),
        (1, 1, {}, 1, 1),
        (96, 8, {"slots": "2"}, 2, 47),
    ],
)
def test_worlds_on_the_cpu_leave_cores_to_the_ranks_on_gpus(
    fake, options, cores, gpus, given, beside, threads
):
    devices = GpuDevices(options(fake(fakes.plain(gpus)), **given))
    cpu = CpuShare(online=cores, affinity=cores)
    devices.machine = msgspec.structs.replace(devices.machine, cpu=cpu)
    devices.look = lambda: devices.machine
    devices.acquire("a run", say=lambda _: None)
    alone = devices.threads(WorldShape(size=1, backend="nccl", device="cuda"))

    devices.reserve_cpu_slots(beside_gpus=True)

    assert [slot.name for slot in devices.cpu_slots] == [f"cpu:{n}" for n in range(beside)]
    assert devices.threads(WorldShape(size=1, backend="nccl", device="cuda")) == threads
    assert devices.threads(WorldShape(size=beside, backend="gloo")) == 1
    assert devices.threads(WorldShape(size=1, backend="gloo")) == beside
    assert alone == max(1, cores // len(devices.slots))
    devices.release()


def test_a_run_that_took_no_gpus_has_the_whole_cpu(fake, options):
    """Under plain pytest no GPU is taken for tests that compute on the CPU."""
    devices = GpuDevices(options(fake(fakes.plain(2))))
    cpu = CpuShare(online=6, affinity=6)
    devices.machine = msgspec.structs.replace(devices.machine, cpu=cpu)

    devices.reserve_cpu_slots(beside_gpus=False)

    assert ([slot.name for slot in devices.slots], devices.cpu_slots) == ([f"cpu:{n}" for n in range(6)], ())


@pytest.mark.parametrize(
    ("facts", "given", "gloo_on_cpu"),
    [
        (fakes.plain(1), {"backend": "gloo,nccl"}, True),
        (fakes.plain(1), {"backend": "gloo,nccl", "device": "cuda"}, False),
        (fakes.plain(1), {"backend": "gloo"}, False),
        (fakes.plain(1), {}, False),
        (fakes.four_a100_mig(), {"backend": "gloo,nccl", "gpus": "MIG-00000000"}, False),
    ],
)
def test_beside_nccl_gloo_is_the_cpu_s(fake, options, facts, given, gloo_on_cpu):
    assert GpuDevices(options(fake(facts), **given)).gloo_on_cpu is gloo_on_cpu


def test_a_torch_without_cuda_runs_on_the_cpu_unless_gpus_were_asked_for(fake, options):
    driver = fake(fakes.plain(1))

    assert GpuDevices(options(driver, compute="cuda")).device == "cpu"
    assert GpuDevices(options(driver, compute="cuda", device="cuda")).device == "cuda"
    assert GpuDevices(options(driver, compute="cuda", gpus="1")).device == "cuda"


@pytest.mark.parametrize(
    ("facts", "given", "error", "message"),
    [
        (fakes.plain(2), {"gpus": "3"}, NotEnoughDevices, "3 GPUs were requested, and 2 can be used"),
        (fakes.plain(2), {"gpus": "GPU-x"}, NotEnoughDevices, "this machine has no GPU GPU-x; see"),
        (fakes.driver(0), {"device": "cuda"}, NotEnoughDevices, "--device cuda needs a GPU"),
        (fakes.driver(0), {"gpus": "all"}, NotEnoughDevices, "--gpus needs a GPU"),
        (fakes.driver(0), {"backend": "nccl"}, NotEnoughDevices, "--backend nccl needs a GPU"),
        (
            fakes.plain(1) | {"gpu.0.error": 15},
            {},
            InfrastructureError,
            "this machine has GPUs and none can be used: GPU 0 is left out: GPU is lost",
        ),
        (
            fakes.plain(1) | {"init": 18},
            {},
            InfrastructureError,
            r"none can be used: .*NVML/RM version mismatch\. See disttest doctor",
        ),
        (fakes.plain(2), {"gpus": "none", "device": "cuda"}, UsageError, "contradict each other"),
    ],
)
def test_what_a_run_refuses(fake, options, facts, given, error, message):
    with pytest.raises(error, match=message):
        GpuDevices(options(fake(facts), **given))
