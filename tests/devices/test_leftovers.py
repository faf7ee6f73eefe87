"""Leftovers between tests, with real files in /dev/shm, real processes and a fake driver."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import uuid as uuids
from pathlib import Path

import fake_driver as fakes
import psutil
import pytest

from disttest.host.leftovers import (
    Period,
    ShmEntry,
    find_litter,
    gpu_leftover,
    left_processes,
    names_in_use,
    remove_litter,
    scan_shm,
)

SHM = Path("/dev/shm")
GIB = 1 << 30


@pytest.fixture
def name():
    chosen = f"disttest-leftover-{uuids.uuid4().hex}"
    yield chosen
    (SHM / chosen).unlink(missing_ok=True)


def find(before, periods=()):
    return find_litter(before, scan_shm(), periods, in_use=names_in_use(), uid=os.geteuid())


def names(litter):
    return [each.entry.name for each in litter]


def test_what_a_dead_process_left_is_found_and_removed(name):
    before = scan_shm()
    subprocess.run([sys.executable, "-c", f"open('/dev/shm/{name}', 'wb').write(b'x' * 4096)"], check=True)

    litter = [each for each in find(before) if each.entry.name == name]

    assert [each.entry.size for each in litter] == [4096]
    assert remove_litter(litter) == ()
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
    litter = [each for each in find({}) if each.entry.name == name]
    (SHM / "disttest-fresh").write_bytes(b"new")
    (SHM / "disttest-fresh").rename(SHM / name)

    assert remove_litter(litter) == ()
    assert (SHM / name).read_bytes() == b"new"


def entry(name, at_s=5.0, uid=0, inode=1):
    return ShmEntry(name=name, size=10, inode=inode, uid=uid, made_at_s=at_s)


PERIODS = (
    Period(nodeid="a", began_at_s=0.0, ended_at_s=4.0, pids=(100, 101)),
    Period(nodeid="b", began_at_s=3.0, ended_at_s=9.0, pids=(102,)),
)


@pytest.mark.parametrize(
    ("made", "tests", "certain"),
    [
        (entry("psm_1", 1.0), ("a",), False),
        (entry("psm_1", 3.5), ("a", "b"), False),
        (entry("psm_1", 20.0), (), False),
        (entry("torch_101_7_0", 20.0), ("a",), True),
        (entry("torch_999_7_0", 5.0), ("b",), False),
        (entry("sem.loky-102-x", 1.0), ("b",), True),
    ],
)
def test_whose_it_is(made, tests, certain):
    (litter,) = find_litter({}, {made.name: made}, PERIODS, in_use=(), uid=0)

    assert (litter.tests, litter.certain) == (tests, certain)


def test_another_users_entry_is_not_ours():
    assert find_litter({}, {"x": entry("x", uid=7)}, PERIODS, in_use=(), uid=0) == ()


def test_the_text_names_the_test():
    (litter,) = find_litter({}, {"x": entry("x", 3.5)}, PERIODS, in_use=(), uid=0)

    assert str(litter) == "shared memory x (10 bytes) was left by a or b"


def test_processes_that_nobody_accounts_for():
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            children = {child.pid for child in psutil.Process().children(recursive=True)}
            found = left_processes(os.getpid(), children - {stranger.pid})
        finally:
            stranger.kill()

    assert found == (f"pid {stranger.pid}: sleep 600",)


def test_memory_that_a_killed_rank_still_holds(fake, detect):
    driver = fake(fakes.plain(2) | {"gpu.0.processes": f"7:{GIB}"})
    before = detect(driver)
    driver.set({"gpu.0.processes": f"7:{GIB},4242:{GIB}", "process.4242": "python", "gpu.1.memory_used": GIB})

    found = [gpu_leftover(*gpus) for gpus in zip(before.gpus, detect(driver).gpus, strict=True)]

    assert found == [
        f"GPU 0 ({fakes.uuid(0)}, {fakes.bus(0)}) is still held by python (pid 4242)",
        f"GPU 1 ({fakes.uuid(1)}, {fakes.bus(1)}) has 1020 MiB more in use than before, "
        "by a process that can not be seen",
    ]


def test_a_gpu_lost_meanwhile_is_reported(fake, detect):
    driver = fake(fakes.plain(1))
    before = detect(driver)
    driver.set({"gpu.0.error.nvmlDeviceGetMemoryInfo_v2": 15})

    assert gpu_leftover(before.gpus[0], detect(driver).gpus[0]) == "GPU is lost"
