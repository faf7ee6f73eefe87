"""Leftovers between tests, with real files in /dev/shm, real processes and a fake driver."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import uuid as uuids
from pathlib import Path

import fake_driver as fakes
import pytest

from disttest.model import Outcome, TestResult
from disttest.plugins.gpus.usage import gpu_leftover
from disttest.plugins.leftovers.limits import LATER_LITTER_S
from disttest.plugins.leftovers.shared_memory import (
    ShmEntry,
    is_abandoned,
    names_in_use,
    open_files,
    remove_entry,
    scan_shm,
    unused_entries,
)
from disttest.plugins.leftovers.sweep import describe_leftover

SHM = Path("/dev/shm")
GIB = 1 << 30


@pytest.fixture
def name():
    chosen = f"disttest-leftover-{uuids.uuid4().hex}"
    yield chosen
    (SHM / chosen).unlink(missing_ok=True)


def find(before):
    """What is new and unused."""
    known = {entry.inode for entry in before.values()}
    return unused_entries(lambda entry: entry.inode not in known)


def names(entries):
    return [entry.name for entry in entries]


def test_what_a_dead_process_left_is_found_and_removed(name):
    before = scan_shm()
    subprocess.run([sys.executable, "-c", f"open('/dev/shm/{name}', 'wb').write(b'x' * 4096)"], check=True)

    litter = [each for each in find(before) if each.name == name]

    assert [each.size for each in litter] == [4096]
    assert remove_entry(litter[0]) == ""
    assert not (SHM / name).exists()


def test_what_somebody_has_mapped_or_open_is_left_alone(name):
    before = scan_shm()
    program = (
        f"import mmap; f = open('/dev/shm/{name}', 'w+b'); f.write(b'x' * 4096); f.flush(); "
        "m = mmap.mmap(f.fileno(), 4096); f.close(); print('ready', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        holder.stdout.readline()
        assert name not in names(find(before))
        holder.communicate("\n")

    assert name in names(find(before))
    with (SHM / name).open("r+b") as opened:
        assert name not in names(find(before))
        with mmap.mmap(opened.fileno(), 4096):
            assert name in names_in_use()


def test_what_was_there_before_is_left_alone(name):
    (SHM / name).write_bytes(b"x")

    assert name not in names(find(scan_shm()))


def test_an_entry_that_was_replaced_is_not_removed(name):
    (SHM / name).write_bytes(b"old")
    litter = [each for each in find({}) if each.name == name]
    (SHM / "disttest-fresh").write_bytes(b"new")
    (SHM / "disttest-fresh").rename(SHM / name)

    assert remove_entry(litter[0]) == ""
    assert (SHM / name).read_bytes() == b"new"


def entry(name, at_s=5.0, uid=0, inode=1):
    return ShmEntry(name=name, size=10, device=1, inode=inode, uid=uid, made_at_s=at_s)


def ran(nodeid, began_s, duration_s):
    return TestResult(
        nodeid=nodeid, outcome=Outcome.PASSED, started_at_s=began_s, duration_s=duration_s - LATER_LITTER_S
    )


ATTEMPTS = (ran("a", 0.0, 4.0), ran("b", 3.0, 6.0))


@pytest.mark.parametrize(
    ("at_s", "told"),
    [
        (1.0, "torch_101_7_0 (10 bytes; a ran then)"),
        (3.5, "torch_101_7_0 (10 bytes; a or b ran then)"),
        (20.0, ""),
    ],
)
def test_who_ran_then(at_s, told):
    assert describe_leftover(entry("torch_101_7_0", at_s), ATTEMPTS) == told


@pytest.mark.parametrize(
    ("name", "abandoned"),
    [
        ("psm_1a2b3c4d", True),
        ("sem.mp-abcdefgh", True),
        ("nccl-aB3xY9", True),
        (f"torch_{1 << 30}_1_0", True),
        (f"torch_{os.getpid()}_1_0", False),
        ("dataset.bin", False),
        ("torch_cache", False),
    ],
)
def test_only_memory_of_libraries_whose_process_is_gone_is_for_the_doctor_to_clean(name, abandoned):
    assert is_abandoned(entry(name)) is abandoned


def test_another_users_entry_is_not_ours(name, monkeypatch):
    (SHM / name).write_bytes(b"x")
    assert name in names(find({}))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert name not in names(find({}))


def test_a_file_that_a_process_closes_meanwhile_hides_none_of_its_others(name, monkeypatch):
    """What is not seen to be in use may be removed."""
    really, vanished = os.readlink, []

    def readlink(path):
        if not vanished:
            vanished.append(path)
            raise FileNotFoundError(path)
        return really(path)

    with (SHM / name).open("wb"):
        monkeypatch.setattr(os, "readlink", readlink)

        assert f"/dev/shm/{name}" in [path for _, path in open_files(os.getpid(), SHM)]
    assert vanished


def test_memory_that_a_killed_rank_still_holds(fake, detect):
    driver = fake(fakes.plain(2) | {"gpu.0.processes": f"7:{GIB}"})
    before = detect(driver)
    driver.set({"gpu.0.processes": f"7:{GIB},4242:{GIB}", "process.4242": "python", "gpu.1.memory_used": GIB})

    found = [gpu_leftover(*gpus) for gpus in zip(before.gpus, detect(driver).gpus, strict=True)]

    assert found == [
        f"GPU 0 ({fakes.uuid(0)}, {fakes.bus(0)}) is still held by python (pid 4242)",
        f"GPU 1 ({fakes.uuid(1)}, {fakes.bus(1)}) has 1020 MiB more in use than before, "
        "by a process that cannot be seen",
    ]


def test_a_gpu_lost_meanwhile_is_reported(fake, detect):
    driver = fake(fakes.plain(1))
    before = detect(driver)
    driver.set({"gpu.0.error.nvmlDeviceGetMemoryInfo_v2": 15})

    assert gpu_leftover(before.gpus[0], detect(driver).gpus[0]) == "GPU is lost"
