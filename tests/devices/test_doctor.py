"""The doctor from end to end: a fake driver, real probes, a real preflight on CPU devices."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import fake_driver as fakes
import junitparser
import pytest
from click.testing import CliRunner

from disttest.extras.doctor.command import doctor
from disttest.extras.doctor.examine import (
    Diagnosis,
    Examination,
    as_run,
    examine,
    render_diagnosis_junit,
    render_finding,
    render_json,
    update_quarantine,
)
from disttest.host.findings import Grade
from disttest.host.machine import CpuShare, Limits
from disttest.plugins.gpus.detect import detect_machine
from disttest.plugins.gpus.leases.lease import Leaser, Request
from disttest.plugins.gpus.leases.quarantine import QuarantineNotes
from disttest.plugins.gpus.machine import Gpu, GpuMachine
from disttest.plugins.gpus.preflight.steps import Bounds, targets_of
from disttest.plugins.gpus.torch_facts import TorchFacts

WORKERS = Path(__file__).parents[1] / "support" / "workers"


@pytest.fixture
def diagnose(tmp_path, monkeypatch):
    """Examine the machine of a fake driver, with faults planted in the compute of its GPUs."""

    def run(driver, *, faults="", lease_dir=None, modules=None):
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, filter(None, [WORKERS, modules]))))
        monkeypatch.setenv("DISTTEST_FAULTS", faults)
        return examine(
            Examination(
                library=str(driver.library),
                root=tmp_path / "empty",
                compute="cpu",
                worker="faulty_worker",
                lease_dir=lease_dir,
                bounds=Bounds(start=300.0, check=10.0, collective=15.0, total=600.0),
            )
        )

    return run


def broken(diagnosis):
    return [(f.device, f.check) for f in diagnosis.findings if f.grade is Grade.BROKEN]


# An empty root has no /dev/shm, which is a finding of its own.
NO_SHM = ("machine", "shared_memory")


def test_a_torch_that_cannot_use_numpy(fake, diagnose, tmp_path):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise ModuleNotFoundError('No module named numpy')\n")

    diagnosis = diagnose(fake(fakes.plain(1)), modules=tmp_path)

    assert broken(diagnosis) == [("machine", "numpy")]
    assert diagnosis.exit_code == 7


def test_a_gpu_that_computes_wrongly(fake, diagnose, tmp_path):
    diagnosis = diagnose(fake(fakes.plain(3)), faults="gpu:1=wrong_matmul")

    label = f"GPU 1 ({fakes.uuid(1)}, {fakes.bus(1)})"
    assert broken(diagnosis) == [NO_SHM, (label, "matmul")]
    assert diagnosis.exit_code == 7
    assert diagnosis.proved == ("gpu:0", "gpu:2")
    (finding,) = [f for f in diagnosis.findings if f.check == "matmul" and f.grade is Grade.BROKEN]
    line = render_finding(finding)
    assert line.startswith(f"broken: {label}: matmul: a matrix product is off by ")
    assert line.endswith(
        "Take the device out of use; the check that failed says what is wrong with it. "
        "(disttest explain preflight-failed)"
    )


def test_junit_has_one_case_for_each_device_and_check(fake, diagnose, tmp_path):
    diagnosis = diagnose(fake(fakes.plain(2)), faults="gpu:1=raise@copy")

    (tmp_path / "junit.xml").write_text(render_diagnosis_junit(diagnosis, tmp_path))

    suite = next(iter(junitparser.JUnitXml.fromfile(str(tmp_path / "junit.xml"))))
    cases = {(case.classname, case.name): case for case in suite}
    assert len(cases) == len(diagnosis.findings)
    bad = cases[f"doctor.GPU 1 ({fakes.uuid(1)}, {fakes.bus(1)})", "copy"]
    (error,) = bad.result
    assert isinstance(error, junitparser.Error)
    assert "uncorrectable ECC error" in error.message
    assert "disttest explain gpu-memory-errors" in error.message
    assert suite.errors == len(broken(diagnosis))


def test_slugs_of_cases_are_unique(fake, diagnose):
    run = as_run(diagnose(fake(fakes.plain(2))))

    slugs = [test.test.slug for test in run.tests]
    assert len(slugs) == len(set(slugs))
    assert all(slugs)


def test_json_holds_everything(fake, diagnose):
    content = json.loads(render_json(diagnose(fake(fakes.plain(3) | {"gpu.2.error": 15}))))

    assert (content["schema_version"], content["exit_code"]) == (1, 7)
    assert content["machine"]["gpus"][2]["fault"] == "GPU is lost"
    assert content["proved"] == ["gpu:0", "gpu:1"]
    lost = [f for f in content["findings"] if f["device"] == "GPU 2" and f["check"] == "answers"]
    assert lost[0]["advice"]["slug"] == "gpu-lost"


def test_no_usable_gpu_is_not_glossed_over_by_proving_the_cpu(fake, diagnose):
    diagnosis = diagnose(fake(fakes.plain(1) | {"gpu.0.error": 15}))

    assert diagnosis.exit_code == 7
    assert diagnosis.proved == ()
    assert not [f for f in diagnosis.findings if f.device.startswith("CPU")]


def test_a_torch_without_cuda_leaves_the_gpus_alone(fake, tmp_path):
    driver = fake(fakes.plain(2))

    diagnosis = examine(Examination(library=str(driver.library), root=tmp_path / "empty"))

    assert diagnosis.proved == ("cpu:0", "cpu:1")
    (torch,) = [finding for finding in diagnosis.findings if finding.check == "torch"]
    assert (torch.grade, torch.advice.slug) == (Grade.WARNING, "torch-unusable")


def test_leases_are_shown_and_what_others_hold_is_left_alone(fake, diagnose, tmp_path):
    driver = fake(fakes.plain(3))
    leaser = Leaser(
        tmp_path / "leases", lambda: detect_machine(library=str(driver.library), root=tmp_path / "empty")
    )
    with leaser.take(Request(count=1, who="nightly ddp")):
        QuarantineNotes(tmp_path / "leases").add(fakes.uuid(2), "matmul failed")
        # The held one would fail: a doctor must not condemn a GPU that is in use.
        diagnosis = diagnose(driver, faults="gpu:0=wrong_matmul", lease_dir=tmp_path / "leases")

    leases = [(f.grade, f.message) for f in diagnosis.findings if f.check == "lease"]
    assert leases == [
        (Grade.OK, f"held by nightly ddp, pid {os.getpid()}: not tested"),
        (Grade.OK, "free"),
        (Grade.WARNING, "in quarantine: matmul failed"),
    ]
    assert diagnosis.proved == ("gpu:1", "gpu:2")
    assert broken(diagnosis) == [NO_SHM]


def test_quarantine_follows_the_diagnosis(fake, diagnose, tmp_path):
    driver, notes = fake(fakes.plain(2)), QuarantineNotes(tmp_path / "leases")
    notes.add(fakes.uuid(0), "was bad")

    changed = update_quarantine(diagnose(driver, faults="gpu:1=wrong@copy"), tmp_path / "leases")

    assert changed == (
        f"gpu:0 ({fakes.uuid(0)}) passed: its quarantine is lifted",
        f"gpu:1 ({fakes.uuid(1)}) is in quarantine now",
    )
    assert set(notes.active()) == {fakes.uuid(1)}


def test_the_command_on_this_machine(tmp_path):
    out = CliRunner().invoke(doctor, ["--json", "-", "--junit", str(tmp_path / "j.xml")])

    content = json.loads(out.stdout)
    assert out.exit_code == content["exit_code"]
    assert "cpu:0" in content["proved"]
    assert "this machine works" in out.stderr
    assert (tmp_path / "j.xml").read_text().count("<testcase") == len(content["findings"])


def test_the_command_says_what_is_broken_and_leaves_with_7(fake):
    driver = fake(fakes.plain(2) | {"gpu.1.ecc_uncorrected": 5})

    out = CliRunner().invoke(doctor, ["--nvml-library", str(driver.library), "--compute", "cpu"])

    assert out.exit_code == 7
    assert (
        f"broken: GPU 1 ({fakes.uuid(1)}, {fakes.bus(1)}): memory_errors: "
        "5 uncorrected memory errors since the driver was loaded. "
        "Reset the GPU; if errors come back after the reset, replace it. (disttest explain gpu-memory-errors)"
    ) in out.output
    assert re.search(
        r"this machine is broken: \d+ checks, \d+ failed, (1 warning|(0|[2-9]|\d\d) warnings), ", out.output
    ), out.output


def test_a_report_that_can_not_be_written(tmp_path):
    out = CliRunner().invoke(doctor, ["--json", str(tmp_path / "no" / "x.json")])

    assert "x.json cannot be written: No such file or directory" in str(out.exception)


def test_help_does_not_import_torch():
    import subprocess
    import sys

    program = "import sys, disttest.extras.doctor.command; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_gpus_without_uuids_are_used_and_set_aside_one_by_one(tmp_path):
    """ROCm's driver names them by their numbers alone."""
    machine = GpuMachine(
        cpu=CpuShare(online=2, affinity=2),
        limits=Limits(memory=8, memory_total=8),
        gpus=(Gpu(index=0), Gpu(index=1)),
    )
    diagnosis = Diagnosis(
        machine=machine, torch=TorchFacts(), findings=(), proved=("gpu:0",), broken={"gpu:1": "matmul failed"}
    )
    update_quarantine(diagnosis, tmp_path)

    assert [target.visible for target in targets_of(machine)] == ["0", "1"]
    states = Leaser(tmp_path, lambda: machine).states()
    assert [state.obstacle.partition(":")[0] for state in states] == ["", "in quarantine"]
