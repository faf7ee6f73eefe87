"""Leases over fake GPUs: who gets which, who waits, what is not handed on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import fake_driver as fakes
import pytest

from disttest.errors import NotEnoughDevices, UsageError
from disttest.plugins.gpus.leases.lease import Leaser, Request

GIB = 1 << 30


class Time:
    """A clock that only sleeping moves; a hook may change the world meanwhile."""

    def __init__(self):
        self.now = 0.0
        self.hooks = {}

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for at in [at for at in self.hooks if at <= self.now]:
            self.hooks.pop(at)()


@pytest.fixture
def leaser(tmp_path, detect):
    def make(driver, *, time=None, said=None):
        time = time or Time()
        return Leaser(
            tmp_path / "leases",
            lambda: detect(driver),
            on_wait=(said if said is not None else []).append,
            clock=time.clock,
            sleep=time.sleep,
        )

    return make


def names(lease):
    return [slot.name for slot in lease.slots]


def test_takes_as_many_as_asked_and_frees_them(fake, leaser):
    takes = leaser(fake(fakes.plain(3)))

    with takes.take(Request(count=2)) as lease:
        assert names(lease) == ["gpu:0", "gpu:1"]
        assert [state.slot.name for state in takes.states() if not state.obstacle] == ["gpu:2"]

    assert not any(state.obstacle for state in takes.states())


def test_two_runs_get_different_gpus(fake, leaser):
    driver = fake(fakes.plain(2))

    first, second = leaser(driver).take(Request(count=1)), leaser(driver).take(Request(count=1))

    assert names(first) + names(second) == ["gpu:0", "gpu:1"]


def test_nvlink_peers_come_first(fake, leaser):
    facts = fakes.bridged_pairs(4)

    with leaser(fake(facts)).take(Request(count=1)):
        # The bridge of the taken GPU is torn anyway; the whole pair is better for two.
        assert names(leaser(fake(facts, "again")).take(Request(count=2))) == ["gpu:2", "gpu:3"]


def test_one_does_not_tear_a_second_pair(fake, leaser):
    driver = fake(fakes.bridged_pairs(4))

    first = leaser(driver).take(Request(count=1))
    second = leaser(driver).take(Request(count=1))

    assert names(first) + names(second) == ["gpu:0", "gpu:1"]


def test_waiting_says_who_holds_what_and_goes_on_when_it_is_free(fake, leaser):
    driver, time, said = fake(fakes.plain(1)), Time(), []
    holder = leaser(driver).take(Request(count=1, who="nightly ddp"))
    time.hooks[1.0] = holder.release

    lease = leaser(driver, time=time, said=said).take(Request(count=1))

    assert names(lease) == ["gpu:0"]
    gpu = f"GPU 0 ({fakes.uuid(0)}, {fakes.bus(0)})"
    assert said == [f"0 of 1 GPUs are free; {gpu} held by nightly ddp, pid {os.getpid()}"]


def test_gives_up_in_time_and_says_why(fake, leaser):
    driver = fake(fakes.plain(1))
    leaser_held = leaser(driver).take(Request(count=1, who="other"))

    with pytest.raises(
        NotEnoughDevices, match=r"no lease within 2 s: 0 of 1 GPUs are free; .* held by other"
    ):
        leaser(driver).take(Request(count=1, timeout_s=2.0))
    leaser_held.release()


def test_more_than_there_are_is_refused_at_once(fake, leaser):
    time = Time()

    with pytest.raises(NotEnoughDevices, match="3 GPUs were requested, and 2 of 2 can be used"):
        leaser(fake(fakes.plain(2)), time=time).take(Request(count=3))
    assert time.now == 0.0


def test_a_lost_gpu_is_not_taken_and_is_named(fake, leaser):
    driver = fake(fakes.plain(2) | {"gpu.0.error": 15})

    assert names(leaser(driver).take(Request(count=1))) == ["gpu:1"]
    with pytest.raises(NotEnoughDevices, match="1 of 2 can be used: GPU 0: GPU is lost"):
        leaser(driver).take(Request(count=2))


def test_foreign_processes_keep_a_gpu_until_they_are_gone(fake, leaser):
    driver, time, said = fake(fakes.plain(1)), Time(), []
    driver.set({"gpu.0.processes": f"4242:{GIB}", "process.4242": "/opt/train"})
    time.hooks[5.0] = lambda: driver.set({"gpu.0.processes": None})

    lease = leaser(driver, time=time, said=said).take(Request(count=1))

    assert names(lease) == ["gpu:0"]
    assert "used by /opt/train (pid 4242)" in said[0]


def test_share_takes_a_busy_gpu(fake, leaser):
    driver = fake(fakes.plain(1) | {"gpu.0.processes": f"4242:{GIB}"})

    assert names(leaser(driver).take(Request(count=1, allow_busy=True))) == ["gpu:0"]


def test_a_desktop_does_not_make_a_gpu_busy(fake, leaser):
    driver = fake(fakes.plain(1) | {"gpu.0.graphics": f"77:{GIB}", "gpu.0.memory_used": 2 * GIB})

    assert names(leaser(driver).take(Request(count=1))) == ["gpu:0"]


def test_memory_of_unseen_processes_makes_it_busy(fake, leaser):
    driver = fake(fakes.plain(1) | {"gpu.0.memory_used": 3 * GIB})

    with pytest.raises(
        NotEnoughDevices, match="3072 MiB are used by a process that cannot be seen from here"
    ):
        leaser(driver).take(Request(count=1, timeout_s=1.0))


def test_mig_slices_are_leased_one_by_one(fake, leaser):
    driver = fake(fakes.four_a100_mig())

    with leaser(driver).take(Request(count=5)) as lease:
        assert names(lease) == ["gpu:0.0", "gpu:0.1", "gpu:0.2", "gpu:2", "gpu:3"]


def test_mig_slices_that_others_use_are_not_taken(fake, leaser):
    used = {"gpu.0.mig.1.processes": f"4242:{GIB}", "process.4242": "python"}
    driver = fake(fakes.four_a100_mig() | used)

    with leaser(driver).take(Request(count=4)) as lease:
        assert names(lease) == ["gpu:0.0", "gpu:0.2", "gpu:2", "gpu:3"]
    (busy,) = [state for state in leaser(driver).states() if state.obstacle]
    assert (busy.slot.name, busy.obstacle) == ("gpu:0.1", "used by python (pid 4242)")
    assert busy.label.startswith("MIG slice MIG-00000001-")
    with leaser(driver).take(Request(count=5, allow_busy=True)) as lease:
        assert "gpu:0.1" in names(lease)


def test_a_gpu_that_vanishes_between_look_and_lock_is_not_handed_out(fake, leaser):
    driver, time, said = fake(fakes.plain(2)), Time(), []
    first = leaser(driver).take(Request(count=2))
    # The waiting run last looked at the machine 1.5 s before: young enough to wait by, too old to take by.
    time.hooks[1.5] = lambda: (driver.set({"gpu.0.error": 15}), first.release())

    with leaser(driver, time=time, said=said).take(Request(count=1)) as lease:
        assert names(lease) == ["gpu:1"]
    assert said[-1] == "GPU 0: GPU is lost" or "vanished" in said[-1]


def test_quarantine_keeps_everyone_off_until_it_is_lifted(fake, leaser):
    driver = fake(fakes.plain(2))
    lease = leaser(driver).take(Request(count=2))

    lease.quarantine(lease.slots[0], "matmul failed")

    assert names(lease) == ["gpu:1"]
    with pytest.raises(NotEnoughDevices, match="in quarantine: matmul failed"):
        leaser(driver).take(Request(count=2))


def test_quarantine_for_a_stuck_process_ends_with_it(fake, leaser):
    driver = fake(fakes.plain(1) | {"gpu.0.processes": f"4242:{GIB}"})
    lease = leaser(driver).take(Request(count=1, allow_busy=True))
    lease.quarantine(lease.slots[0], "pid 4242 does not let go", pid=4242)

    with pytest.raises(NotEnoughDevices, match=r"no lease within 1 s.*pid 4242 does not let go"):
        leaser(driver).take(Request(count=1, allow_busy=True, timeout_s=1.0))
    driver.set({"gpu.0.processes": None})

    assert names(leaser(driver).take(Request(count=1))) == ["gpu:0"]


def test_quarantine_ends_with_a_reboot(tmp_path):
    from disttest.plugins.gpus.leases.quarantine import QuarantineNotes

    QuarantineNotes(tmp_path, boot_id="one").add("GPU-1", "bad")

    assert set(QuarantineNotes(tmp_path, boot_id="one").active()) == {"GPU-1"}
    assert not QuarantineNotes(tmp_path, boot_id="two").active()
    assert not list(tmp_path.glob("*.quarantine"))


def test_a_killed_holder_frees_its_gpu(fake, leaser, tmp_path):
    driver = fake(fakes.plain(1))
    program = (
        "import sys; from pathlib import Path; from disttest.plugins.gpus.leases.lockfiles import *; "
        "lock = LockDirectory(Path(sys.argv[1])).try_lock(sys.argv[2]); assert lock; "
        "print('held', flush=True); import time; time.sleep(600)"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "leases"), f"{fakes.uuid(0)}.lock"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(NotEnoughDevices):
            leaser(driver).take(Request(count=1, timeout_s=0.5))
        holder.send_signal(signal.SIGKILL)
        holder.wait()

    assert names(leaser(driver).take(Request(count=1))) == ["gpu:0"]


def test_the_line_is_first_come_first_served(fake, leaser):
    """One that wants both does not starve beside a stream of those that want one."""
    driver, order, held = fake(fakes.plain(2)), [], []
    held.append(leaser(driver).take(Request(count=1)))
    wide_time, narrow_time = Time(), Time()

    def narrow_comes():
        said = []
        narrow_time.hooks[0.2] = held[0].release
        with pytest.raises(NotEnoughDevices):
            leaser(driver, time=narrow_time, said=said).take(Request(count=1, timeout_s=0.5))
        order.append(said[0])

    wide_time.hooks[1.0] = narrow_comes
    lease = leaser(driver, time=wide_time).take(Request(count=2, who="wide"))

    assert names(lease) == ["gpu:0", "gpu:1"]
    assert order == [f"in line behind wide (waits for 2), pid {os.getpid()}"]


def test_a_directory_that_can_not_be_used(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(
        UsageError, match=r"the lease directory .*file/leases cannot be used: Not a directory"
    ):
        Leaser(tmp_path / "file" / "leases", lambda: None)


def test_the_directory_is_for_all_users(fake, leaser, tmp_path):
    old = os.umask(0o077)
    try:
        leaser(fake(fakes.plain(1))).take(Request(count=1))
    finally:
        os.umask(old)

    assert (tmp_path / "leases").stat().st_mode & 0o7777 == 0o1777
    assert (tmp_path / "leases" / f"{fakes.uuid(0)}.lock").stat().st_mode & 0o777 == 0o666
