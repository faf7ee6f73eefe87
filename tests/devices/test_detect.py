"""Detection through the fake driver: the real probe in a real child, a machine for each scenario."""

from __future__ import annotations

import platform

import fake_driver as fakes
import pytest

from disttest.host.machine import operating_system
from disttest.plugins.gpus.detect import detect_machine
from disttest.plugins.gpus.torch_facts import TorchFacts, ask_torch

GIB = 1 << 30


def names(machine):
    return [slot.name for slot in machine.slots("cuda")]


def test_eight_h100_on_nvswitch(fake, detect):
    machine = detect(fake(fakes.eight_h100()))

    assert (machine.driver, machine.cuda_driver, machine.nvml_error) == ("550.54.15", "12.4", "")
    assert names(machine) == [f"gpu:{index}" for index in range(8)]
    gpu = machine.gpus[3]
    assert (gpu.index, gpu.uuid, gpu.bus_id, gpu.minor) == (3, fakes.uuid(3), fakes.bus(3), 3)
    assert (gpu.name, gpu.compute_capability) == ("NVIDIA H100 80GB HBM3", "9.0")
    assert (gpu.memory_total, gpu.memory_used) == (80 * GIB, 4 << 20)
    assert (gpu.ecc_enabled, gpu.persistence, gpu.compute_mode) == (True, True, "default")
    assert (gpu.throttle, gpu.temperature_c, gpu.pcie_width, gpu.pcie_generation) == ((), 31, 16, 5)
    assert (gpu.nvlinks_active, gpu.nvlinks_down) == (18, 0)
    assert {(peer.index, peer.nvlinks, peer.path) for peer in gpu.peers} == {
        (other, 18, "node") for other in range(8) if other != 3
    }


def test_bridged_pairs(fake, detect):
    machine = detect(fake(fakes.bridged_pairs(4)))

    links = {(gpu.index, peer.index): peer.nvlinks for gpu in machine.gpus for peer in gpu.peers}
    assert {pair for pair, count in links.items() if count} == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert links[0, 1] == 12


def test_mig(fake, detect):
    machine = detect(fake(fakes.four_a100_mig()))

    assert [len(gpu.slices) for gpu in machine.gpus] == [3, 0, 0, 0]
    assert [gpu.mig_enabled for gpu in machine.gpus] == [True, True, False, False]
    assert names(machine) == ["gpu:0.0", "gpu:0.1", "gpu:0.2", "gpu:2", "gpu:3"]
    assert machine.slots("cuda")[1].uuid == "MIG-00000001-aaaa-bbbb-cccc-ddddeeeeffff"


def test_mig_that_waits_for_a_reset(fake, detect):
    machine = detect(fake(fakes.plain(1) | {"gpu.0.mig_current": 0, "gpu.0.mig_next": 1}))

    assert (machine.gpus[0].mig_enabled, machine.gpus[0].mig_pending) == (False, True)


def test_a_gpu_that_hangs_is_named_and_the_others_are_seen(fake, detect):
    machine = detect(fake(fakes.eight_h100() | {"gpu.5.hang": "nvmlDeviceGetMemoryInfo_v2"}), stall_s=1.0)

    assert [gpu.index for gpu in machine.gpus if gpu.fault] == [5]
    assert machine.gpus[5].uuid == fakes.uuid(5)
    assert "gave no answer within" in machine.gpus[5].fault
    assert len(names(machine)) == 7
    # The links of the others were still asked for.
    assert len(machine.gpus[0].peers) == 6


def test_two_gpus_that_hang(fake, detect):
    facts = fakes.plain(4) | {"gpu.1.hang": "*", "gpu.2.hang": "nvmlDeviceGetTemperature"}

    assert names(detect(fake(facts), stall_s=0.7)) == ["gpu:0", "gpu:3"]


def test_a_gpu_whose_question_crashes_the_probe(fake, detect):
    machine = detect(fake(fakes.plain(2) | {"gpu.1.crash": "nvmlDeviceGetEccMode"}))

    assert machine.gpus[1].fault == "the NVML probe was ended by SIGSEGV when asked about this GPU"
    assert names(machine) == ["gpu:0"]


def test_nvml_itself_hangs(fake, detect):
    machine = detect(fake(fakes.plain(2) | {"hang": "nvmlInitWithFlags"}), stall_s=2.0)

    assert machine.gpus == ()
    assert machine.nvml_error.startswith("nvmlInit: the NVML probe gave no answer within")


def test_nvml_crashes(fake, detect):
    machine = detect(fake(fakes.plain(1) | {"crash": "nvmlInitWithFlags"}))

    assert machine.nvml_error == "nvmlInit: the NVML probe was ended by SIGSEGV"


def test_nvml_hangs_at_its_end(fake, detect):
    """Everything is known by then; it is still worth a word."""
    machine = detect(fake(fakes.plain(1) | {"hang": "nvmlShutdown"}), stall_s=2.0)

    assert names(machine) == ["gpu:0"]
    assert machine.nvml_error.startswith("nvmlShutdown:")


@pytest.mark.parametrize(
    ("code", "words"), [(15, "GPU is lost"), (16, "GPU requires restart"), (999, "Unknown Error")]
)
def test_a_gpu_that_nvml_declares_broken(fake, detect, code, words):
    machine = detect(fake(fakes.eight_h100() | {"gpu.2.error": code}))

    assert machine.gpus[2].fault == words
    assert names(machine) == [f"gpu:{index}" for index in (0, 1, 3, 4, 5, 6, 7)]


def test_a_gpu_lost_in_the_middle_of_the_questions(fake, detect):
    machine = detect(fake(fakes.plain(2) | {"gpu.0.error.nvmlDeviceGetTotalEccErrors": 15}))

    assert (machine.gpus[0].fault, machine.gpus[0].uuid) == ("GPU is lost", fakes.uuid(0))


def test_a_lost_gpu_is_named_from_the_kernel(fake, detect, tmp_path):
    root = tmp_path / "root"
    for index in range(2):
        folder = root / "proc/driver/nvidia/gpus" / fakes.bus(index).lower()
        folder.mkdir(parents=True)
        text = (
            f"Model: \t\t NVIDIA L4\nGPU UUID: \t {fakes.uuid(index)}\nBus Location: \t {fakes.bus(index)}\n"
        )
        (folder / "information").write_text(text)

    machine = detect(fake(fakes.plain(2) | {"gpu.1.error": 15}), root=root)

    assert machine.gpus[1].label == f"GPU 1 ({fakes.uuid(1)}, {fakes.bus(1)})"
    assert machine.gpus[1].name == "NVIDIA L4"


def test_version_mismatch(fake, detect):
    machine = detect(fake({"init": 18}))

    assert machine.gpus == ()
    assert "mismatch" in machine.nvml_error


def test_unknown_error_at_the_start(fake, detect):
    assert detect(fake({"init": 999})).nvml_error == "Unknown Error"


def test_driver_not_loaded_is_an_ordinary_answer(fake, detect):
    machine = detect(fake({"init": 9}))

    assert (machine.gpus, machine.nvml_error, machine.slots("cuda")) == ((), "", ())


def test_driver_not_loaded_is_a_finding_where_there_are_device_nodes(fake, detect, tmp_path):
    (tmp_path / "root" / "dev").mkdir(parents=True)
    (tmp_path / "root" / "dev" / "nvidia0").touch()

    machine = detect(fake({"init": 9}), root=tmp_path / "root")

    assert machine.nvml_error == "Driver Not Loaded"
    assert machine.device_nodes == ("/dev/nvidia0",)


def test_a_library_that_can_not_be_loaded(tmp_path):
    (tmp_path / "lib.so").write_text("this is no library")

    machine = detect_machine(library=str(tmp_path / "lib.so"), root=tmp_path)

    assert machine.nvml_error.startswith("nvmlInit") or "lib.so" in machine.nvml_error
    assert machine.slots("cuda") == ()


def test_a_driver_without_gpus(fake, detect):
    machine = detect(fake(fakes.driver(0)))

    assert (machine.driver, machine.gpus, machine.nvml_error) == ("550.54.15", (), "")


def test_ecc_and_remapped_rows(fake, detect):
    facts = {"ecc_uncorrected": 2, "ecc_corrected": 7, "remapped_rows": 3, "remap_pending": 1}

    gpu = detect(fake(fakes.plain(1) | {f"gpu.0.{name}": value for name, value in facts.items()})).gpus[0]

    assert (gpu.ecc_uncorrected, gpu.ecc_corrected) == (2, 7)
    assert (gpu.remapped_rows, gpu.remap_pending, gpu.remap_failed) == (3, True, False)


@pytest.mark.parametrize("name", ["throttle", "throttle_old"])
def test_throttle_reasons_of_new_and_old_drivers(fake, detect, name):
    facts = fakes.plain(1) | {"gpu.0.throttle": None, f"gpu.0.{name}": 0x1 | 0x8 | 0x40}

    assert detect(fake(facts)).gpus[0].throttle == ("hardware slowdown", "thermal slowdown (hardware)")


def test_processes(fake, detect):
    facts = {
        "gpu.0.processes": f"10:{GIB},20:5",
        "gpu.0.graphics": f"20:{GIB}",
        "process.10": "/usr/bin/python",
    }

    gpu = detect(fake(fakes.plain(1) | facts)).gpus[0]

    assert [(p.pid, p.memory, p.name, p.computes) for p in gpu.processes] == [
        (10, GIB, "/usr/bin/python", True),
        (20, 5, "", False),
    ]


def test_clients_of_mps_compute_and_its_server_does_not(fake, detect):
    facts = {
        "gpu.0.processes": f"10:{GIB}",
        "gpu.0.mps_clients": "30:7",
        "process.10": "/usr/bin/nvidia-cuda-mps-server",
        "process.30": "/usr/bin/python",
    }

    gpu = detect(fake(fakes.plain(1) | facts)).gpus[0]

    assert [(p.pid, p.memory, p.computes) for p in gpu.processes] == [(10, GIB, False), (30, 7, True)]


def test_an_old_driver_that_lacks_functions(fake, detect):
    missing = [
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetCurrentClocksEventReasons",
    ]
    facts = fakes.plain(1) | {f"gpu.0.error.{name}": 13 for name in missing}

    gpu = detect(fake(facts)).gpus[0]

    assert gpu.fault == ""
    assert gpu.memory_used == (4 << 20) + (500 << 20)


def test_questions_that_are_not_allowed_leave_defaults(fake, detect):
    gpu = detect(fake(fakes.plain(1) | {"gpu.0.error.nvmlDeviceGetPersistenceMode": 4})).gpus[0]

    assert (gpu.fault, gpu.persistence) == ("", None)


def test_nvlinks_that_are_down(fake, detect):
    gpu = detect(fake(fakes.bridged_pairs(2) | {"gpu.0.nvlink": "AAAADDAAAAAA"})).gpus[0]

    assert (gpu.nvlinks_active, gpu.nvlinks_down) == (10, 2)


def test_devices_that_vanish_and_come_back(fake, detect):
    driver = fake(fakes.plain(3))
    assert len(names(detect(driver))) == 3

    driver.set({"gpu.1.error": 15})
    assert names(detect(driver)) == ["gpu:0", "gpu:2"]

    driver.set({"count": 1, "gpu.1.error": None})
    assert names(detect(driver)) == ["gpu:0"]

    driver.set({"count": 3})
    assert len(names(detect(driver))) == 3


def test_a_visible_list_restricts_and_orders(fake, detect):
    machine = detect(fake(fakes.plain(4)))

    assert names(machine.restricted_to("2,0")) == ["gpu:2", "gpu:0"]
    assert names(machine.restricted_to(fakes.uuid(3)[:12])) == ["gpu:3"]
    assert names(machine.restricted_to("1,9,2")) == ["gpu:1"]
    assert names(machine.restricted_to("-1")) == []
    assert names(machine.restricted_to("")) == []


def test_a_visible_slice_is_that_slice_alone(fake, detect):
    machine = detect(fake(fakes.four_a100_mig()))
    slices = [f"MIG-{part:08x}" for part in range(3)]

    assert names(machine.restricted_to(slices[1])) == ["gpu:0.1"]
    assert names(machine.restricted_to(f"{slices[2]},{slices[0]}")) == ["gpu:0.2", "gpu:0.0"]
    assert names(machine.restricted_to("0")) == ["gpu:0.0", "gpu:0.1", "gpu:0.2"]


@pytest.mark.parametrize(
    ("facts", "groups"),
    [
        (fakes.eight_h100(), ["nvlink:0"] * 8),
        (fakes.bridged_pairs(4), ["nvlink:0", "nvlink:0", "nvlink:2", "nvlink:2"]),
        (fakes.bridged_pairs(4) | {"gpu.1.error": 15}, ["nvlink:0", "nvlink:2", "nvlink:2"]),
        (
            fakes.plain(4) | {"path": 50, "path.0.1": 30, "path.2.3": 40},
            ["numa:0", "numa:0", "numa:2", "numa:2"],
        ),
        (fakes.plain(2) | {"path": 50}, ["numa:0", "numa:1"]),
        (fakes.four_a100_mig(), ["numa:0", "numa:0", "numa:0", "numa:2", "numa:3"]),
    ],
)
def test_which_gpus_are_near_each_other(fake, detect, facts, groups):
    assert [slot.group for slot in detect(fake(facts)).slots("cuda")] == groups


def test_the_environment_variable_of_the_container_is_not_believed(fake, detect, monkeypatch):
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "void")

    assert len(names(detect(fake(fakes.plain(2))))) == 2


def test_nothing_is_started_where_nothing_hints_at_a_gpu(tmp_path, monkeypatch):
    import disttest.plugins.gpus.detect as module

    monkeypatch.setattr(module, "start_probe", lambda *a, **k: pytest.fail("a child was started"))

    assert detect_machine(root=tmp_path).gpus == ()


def test_gpus_of_another_vendor_come_from_torch(tmp_path, monkeypatch):
    import disttest.plugins.gpus.detect as module

    seen = TorchFacts(version="2.13.0", hip="7.0", device_type="cuda", devices=("AMD Instinct MI300X",) * 2)
    monkeypatch.setattr(module, "ask_torch", lambda *, timeout_s: seen)
    (tmp_path / "dev").mkdir()
    assert detect_machine(root=tmp_path).gpus == ()

    (tmp_path / "dev" / "kfd").touch()
    machine = detect_machine(root=tmp_path)

    assert names(machine) == ["gpu:0", "gpu:1"]
    assert machine.hardware().gpus == ("AMD Instinct MI300X",) * 2


def test_the_operating_system_is_named_as_python_names_it():
    assert operating_system() == platform.platform()


def test_what_torch_says_of_itself():
    facts = ask_torch()

    assert facts.version.startswith("2.")
    assert (facts.device_type, facts.devices, facts.error) == ("cpu", (), "")
    assert "gloo" in facts.backends
