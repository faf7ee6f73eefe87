"""The whole command on hosts with fake GPUs: leases, worlds on slots, devices that fail, leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_driver as fakes
import msgspec
import pytest
from lab import Lab

from disttest.errors import ExitCode
from disttest.extras.shards import shard_plan
from disttest.extras.shards.shard_plan import Plan
from disttest.model import Cause, Outcome
from disttest.plugins.costs.cost import cost_of
from disttest.plugins.gpus.detect import detect_machine
from disttest.plugins.gpus.leases.lease import Leaser, Request
from disttest.plugins.gpus.run_gpus import cpu_share
from disttest.results.events import Noted, WorldEnded, WorldStarted
from disttest.results.journal import FILE_NAME, read_events

GIB = 1 << 30


def holder(host, count, who="nightly ddp"):
    """Somebody else's lease."""
    look = lambda: detect_machine(library=str(host.driver.library))  # noqa: E731
    return Leaser(host.folder / "leases", look).take(Request(count=count, who=who))


def notes(ended):
    return [event.message for event in ended.events if isinstance(event, Noted)]


def wait_for(condition, limit_s=120.0):
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def slots_of_worlds(ended):
    return [event.slots for event in ended.events if isinstance(event, WorldStarted)]


def assert_never_double_booked(ended):
    """By the journal: a slot is one world's at a time; how many worlds held slots at once, at most."""
    held, most = {}, 0
    for event in ended.events:
        match event:
            case WorldStarted():
                taken = {slot for slots in held.values() for slot in slots}
                assert not taken & set(event.slots), (event, held)
                held[event.world_id] = event.slots
                most = max(most, len(held))
            case WorldEnded():
                del held[event.world_id]
    assert held == {}
    return most


# --- leases


def test_two_runs_side_by_side_never_share_a_gpu(host):
    """Each test holds its GPUs by files that must not be there yet; and each run waits until the other one runs."""
    host = host(fakes.eight_h100())
    host.write(
        test_sharing="""
        import os, time
        from pathlib import Path
        import pytest

        @pytest.mark.world_size(1, 2)
        @pytest.mark.parametrize("n", range(8))
        def test_alone(n):
            mine = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ["RANK"])]
            Path(os.environ["RUN"]).touch()
            while not Path(os.environ["OTHER"]).exists():
                time.sleep(0.01)
            Path(mine).touch(exist_ok=False)
            time.sleep(0.02)
            Path(mine).unlink()
        """
    )
    first = host.start(".", "--gpus", "4", results="one", RUN="1", OTHER="2", DISTTEST_TIMEOUT="120")
    second = host.start(".", "--gpus", "4", results="two", RUN="2", OTHER="1", DISTTEST_TIMEOUT="120")
    ended = host.end(first, "one"), host.end(second, "two")

    assert [each.exit_code for each in ended] == [0, 0], ended[0].output + ended[1].output
    used = [{name for slots in slots_of_worlds(each) for name in slots} for each in ended]
    assert [len(names) for names in used] == [4, 4]
    assert not used[0] & used[1]


def test_a_plan_for_gpus_that_was_made_without_any_fits_the_runner(host):
    """All of the shard's tests exist here, and none is new."""
    host = host(fakes.plain(2))
    host.write(test_x="import pytest\n\n@pytest.mark.world_size()\ndef test_x(): pass\n")
    command = [sys.executable, "-m", "disttest", "plan", ".", "--device", "cuda", "--backend", "gloo"]
    path = os.pathsep.join(part for part in sys.path if part)
    planned = subprocess.run(
        [*command, "--pool", "gpu2:2:1"],
        cwd=host.folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert planned.returncode == 0, planned.stdout + planned.stderr
    ended = host.run(".", "--plan", "plan.json", "--shard", "1")

    assert ended.exit_code == 0, ended.output
    assert set(ended.results_of()) == {"test_x", "test_x[2xgloo]"}
    assert not any("plan" in note for note in notes(ended)), notes(ended)

    # What a plan made for the CPU looks like from here: other worlds, other names.
    file = host.folder / "plan.json"
    text = file.read_text().replace('"cuda"', '"cpu"').replace("xgloo]", "xother]")
    other = msgspec.json.decode(text, type=Plan)
    plan_id = shard_plan._digest(other.shards, other.revision)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(other, plan_id=plan_id)))
    refused = host.run(".", "--plan", "plan.json", "--shard", "1")
    assert refused.exit_code == 4, refused.output
    assert "was planned for the CPU" in refused.output


def test_a_waiting_run_says_who_holds_what_and_goes_on(host):
    host = host(fakes.plain(2))
    host.write(test_x="import pytest\n\n@pytest.mark.world_size(1)\ndef test_x(): pass\n")
    lease = holder(host, 1)
    process = host.start(".", "--gpus", "2")
    said = next(text for text in process.stdout if "waiting for GPUs" in text)
    lease.release()
    ended = host.end(process)

    assert ended.exit_code == 0, ended.output
    line = (
        f"waiting for GPUs: 1 of 2 GPUs are free; GPU 0 ({fakes.uuid(0)}, {fakes.bus(0)}) held by nightly ddp"
    )
    assert said == f"disttest: {line}, pid {os.getpid()}\n"
    assert any(note.startswith(line) for note in notes(ended))


def test_a_run_that_gets_no_gpu_in_time_says_so_in_its_reports(host):
    host = host(fakes.plain(1))
    host.write(test_x="import pytest\n\n@pytest.mark.world_size(1)\ndef test_x(): pass\n")
    with holder(host, 1):
        ended = host.run(".", "--deadline", "8")

    assert ended.exit_code == 6, ended.output
    assert "0 of 1 GPUs are free" in ended.run.reason
    assert "held by nightly ddp" in ended.run.reason
    assert (ended.results / "junit.xml").exists()


def test_a_killed_run_frees_its_gpus(host):
    host = host(fakes.plain(1))
    host.write(
        test_x="""
        import time
        from pathlib import Path
        import pytest

        @pytest.mark.world_size(1)
        def test_x():
            Path("up").touch()
            time.sleep(600)
        """
    )
    process = host.start(".")
    wait_for((host.folder / "up").exists)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    with holder(host, 1) as lease:
        assert [slot.name for slot in lease.slots] == ["gpu:0"]


def test_cpu_runs_take_nothing(host):
    host = host(fakes.plain(1))
    host.write(test_x="import pytest\n\n@pytest.mark.world_size(2)\ndef test_x(world): pass\n")
    with holder(host, 1):
        ended = host.run(".", "--gpus", "none")

    assert ended.exit_code == 0, ended.output
    assert {name.partition(":")[0] for slots in slots_of_worlds(ended) for name in slots} == {"cpu"}


def test_without_the_plugin_of_gpus_a_run_is_on_the_cpu_and_reports_none(host):
    host = host(fakes.plain(1))
    host.write(test_x="import pytest\n\n@pytest.mark.world_size(2)\ndef test_x(world): pass\n")
    with holder(host, 1):
        ended = host.run(".", "-p", "no:disttest.gpus")
    refused = host.run(".", "-p", "no:disttest.gpus", "--gpus", "1")

    assert ended.exit_code == 0, ended.output
    assert {name.partition(":")[0] for slots in slots_of_worlds(ended) for name in slots} == {"cpu"}
    assert () == ended.run.hardware.gpus
    assert refused.exit_code == ExitCode.USAGE, refused.output
    assert "--gpus needs a plugin that provides devices" in refused.output


BESIDE = """
import json, os, time
from pathlib import Path
import pytest
import torch.distributed as dist
from disttest.testing import MultiProcessTestCase

def meet(me, other):
    Path(me).touch()
    while not Path(other).exists():
        time.sleep(0.01)

@pytest.mark.world_size(1)
@pytest.mark.parametrize("n", range(4))
def test_gpu(n):
    if n == 0:
        meet("gpu is busy", "cpu is busy")
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    Path(f"gpu{n}.seen").write_text(json.dumps([visible, os.environ["OMP_NUM_THREADS"]]))
    Path(visible).touch(exist_ok=False)  # nobody else is on this GPU
    time.sleep(0.02)
    Path(visible).unlink()

@pytest.mark.world_size(2)
@pytest.mark.device("cpu")
@pytest.mark.parametrize("n", range(4))
def test_cpu(n, world):
    if n == 0:
        meet("cpu is busy", "gpu is busy")
    assert (os.environ["CUDA_VISIBLE_DEVICES"], world.device.type) == ("", "cpu")
    dist.barrier()

@pytest.mark.device("cpu")
class TestStartsItsRanks(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_hosted(self):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""

@pytest.mark.exclusive
@pytest.mark.world_size(1)
@pytest.mark.device("cpu")
def test_alone():
    assert not Path("gpu is busy").exists()
"""


def test_worlds_on_the_cpu_run_beside_worlds_on_gpus(host):
    """A test of each kind waits until the other one runs; an exclusive one runs before either."""
    host = host(fakes.plain(2))
    host.write(test_beside=BESIDE)
    ended = host.run(".", DISTTEST_TIMEOUT="120")

    assert ended.exit_code == 0, ended.output
    assert assert_never_double_booked(ended) >= 2
    shapes = {event.world_id: event.shape for event in ended.events if isinstance(event, WorldStarted)}
    kinds = {
        (shapes[event.world_id].device, slot.partition(":")[0])
        for event in ended.events
        if isinstance(event, WorldStarted)
        for slot in event.slots
    }
    assert kinds == {("cpu", "cpu"), ("cuda", "gpu")}
    run = ended.run
    assert (run.slots, run.cpu_slots) == (2, cpu_share(run.hardware.cpus, gpus=2))
    threads = str(max(1, (run.hardware.cpus - run.cpu_slots) // 2))
    seen = [json.loads((host.folder / f"gpu{n}.seen").read_text()) for n in range(4)]
    assert {visible for visible, _ in seen} <= {fakes.uuid(0), fakes.uuid(1)}
    assert {count for _, count in seen} == {threads}
    assert (cost_of(run).unit, cost_of(run).slots) == ("GPU", 2)


def test_when_the_last_gpu_dies_the_worlds_on_the_cpu_go_on(host):
    """The test that runs on the CPU waits for the end of the others; it fails then, and is tried again."""
    host = host(fakes.plain(1))
    host.write(
        test_x="""
        import time
        from pathlib import Path
        import pytest

        @pytest.mark.world_size(1)
        @pytest.mark.parametrize("n", range(5))
        def test_gpu(n):
            while not Path("gone").exists():
                time.sleep(0.01)
            raise RuntimeError("CUDA error: GPU is lost")

        @pytest.mark.world_size(1)
        @pytest.mark.device("cpu")
        @pytest.mark.parametrize("n", range(3))
        def test_cpu(n, tmp_path):
            Path("up").touch()
            while "not run: GPU 0" not in Path("results/events.jsonl").read_text():
                time.sleep(0.01)
            if n == 0 and not Path("again").exists():
                Path("again").touch()
                raise ValueError("at first")
        """
    )
    process = host.start(".", "--retries", "1", DISTTEST_TIMEOUT="120")
    wait_for((host.folder / "up").exists)
    host.driver.set({"gpu.0.error": 15})
    (host.folder / "gone").touch()
    ended = host.end(process)

    assert ended.exit_code == 7, ended.output
    results = ended.results_of()
    assert {name: results[name].outcome for name in results if "cpu" in name} == dict.fromkeys(
        (f"test_cpu[{n}]" for n in range(3)), Outcome.PASSED
    )
    assert results["test_cpu[0]"].attempt == 2
    lost = [result for name, result in results.items() if "gpu" in name]
    assert {result.outcome for result in lost} == {Outcome.ERROR, Outcome.SKIPPED}
    assert all("not run: GPU 0" in result.message for result in lost)


def test_a_world_gets_the_gpus_of_one_bridge(host):
    """Pairs 0-1 and 2-3; a world of one takes a GPU, and the worlds of two the whole pairs."""
    host = host(fakes.bridged_pairs(4))
    host.write(
        test_x="""
        import os, time
        from pathlib import Path
        import pytest

        @pytest.mark.world_size(1)
        def test_one():
            while not Path("pair").exists():
                time.sleep(0.01)

        @pytest.mark.world_size(2)
        def test_pair():
            Path("pair").touch()
        """
    )
    ended = host.run(".")

    assert ended.exit_code == 0, ended.output
    assert sorted(slots_of_worlds(ended), key=len) in (
        [("gpu:2",), ("gpu:0", "gpu:1")],
        [("gpu:0",), ("gpu:2", "gpu:3")],
    )


def test_ranks_in_fresh_interpreters_see_the_tests_of_the_whole_run(host):
    """A rank that collects for itself knows the GPUs of the run from its order: it sees only those of its world."""
    host = host(fakes.plain(2))
    host.write(
        test_x="""
        import threading, time, os
        import pytest

        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()  # no fork is safe now

        @pytest.mark.world_size()
        def test_sizes():
            assert os.environ["CUDA_VISIBLE_DEVICES"].count("GPU-") == int(os.environ["WORLD_SIZE"])
        """
    )
    ended = host.run(".")

    assert ended.exit_code == 0, ended.output
    assert [test.test.name for test in ended.run.tests] == ["test_sizes[1xgloo]", "test_sizes[2xgloo]"]


def test_mig_slices_run_gloo_and_a_rank_sees_its_own(host):
    host = host(fakes.four_a100_mig())
    host.write(
        test_x="""
        import os, pytest

        @pytest.mark.world_size(2)
        def test_slice():
            assert os.environ["CUDA_VISIBLE_DEVICES"].startswith("MIG-0000000" + os.environ["RANK"])

        @pytest.mark.world_size(2)
        @pytest.mark.backend("nccl")
        def test_refused(): pass
        """
    )
    slices = ",".join(f"MIG-{part:08x}-aaaa-bbbb-cccc-ddddeeeeffff" for part in range(2))
    ended = host.run(".", "--gpus", slices, backend=None)

    assert ended.exit_code == 0, ended.output
    assert {test.test.name: test.final.outcome for test in ended.run.tests} == {
        "test_slice[2xgloo]": Outcome.PASSED,
        "test_refused[2xnccl]": Outcome.SKIPPED,
    }
    assert "NCCL refuses MIG slices" in ended.run.tests[1].final.message


# --- devices that fail

SICK = """
import os, pytest

@pytest.mark.world_size(1)
@pytest.mark.parametrize("n", range(8))
def test_x(n):
    if os.environ["CUDA_VISIBLE_DEVICES"] in os.environ["SICK"]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""


def test_a_gpu_that_fails_the_proof_is_left_out_and_its_tests_run_elsewhere(host):
    host = host(fakes.plain(2))
    host.write(test_x=SICK)
    ended = host.run(".", SICK=fakes.uuid(1), DISTTEST_FAULTS="gpu:1=wrong_matmul")

    assert ended.exit_code == 0, ended.output
    assert {result.outcome for result in ended.results_of().values()} == {Outcome.PASSED}
    spoiled = [test.attempts[0] for test in ended.run.tests if len(test.attempts) > 1]
    assert len(spoiled) >= 2
    assert {attempt.cause for attempt in spoiled} == {Cause.INFRASTRUCTURE}
    label = f"GPU 1 ({fakes.uuid(1)}, {fakes.bus(1)})"
    assert all(f"not the test's fault: matmul failed on {label}: " in attempt.message for attempt in spoiled)
    assert any("2 tests failed in a way that looks like the device" in note for note in notes(ended))
    after = host.run(".", "--gpus", "2", SICK="")
    assert after.exit_code == 6
    assert f"GPU {fakes.uuid(1)} is left out: in quarantine: matmul failed on {label}" in after.output


def test_failures_on_healthy_devices_are_the_tests_own(host):
    host = host(fakes.plain(1))
    host.write(test_x=SICK)
    ended = host.run(".", SICK=fakes.uuid(0))

    assert ended.exit_code == 1, ended.output
    assert {result.cause for result in ended.results_of().values()} == {Cause.TEST}
    assert "8 failed" in ended.output
    assert any("the preflight found nothing" in note for note in notes(ended))
    assert not list((host.folder / "leases").glob("*.quarantine"))


def test_ordinary_failures_never_ask_for_a_proof(host):
    host = host(fakes.plain(1))
    host.write(
        test_x="""
        import pytest

        @pytest.mark.world_size(1)
        @pytest.mark.parametrize("n", range(4))
        def test_x(n):
            assert n == 5
        """
    )
    ended = host.run(".", DISTTEST_FAULTS="gpu:0=wrong_matmul")

    assert ended.exit_code == 1, ended.output
    assert not any("preflight" in note or "looks like" in note for note in notes(ended))


@pytest.mark.parametrize("how", ["vanishes", "is lost"])
def test_a_run_whose_gpu_dies_ends_with_7_and_each_test_says_why(host, how):
    host = host(fakes.plain(1))
    scenario = {"vanishes": {"count": 0}, "is lost": {"gpu.0.error": 15}}[how]
    host.write(
        test_a=f"""
        import sys, pytest
        from pathlib import Path
        sys.path.insert(0, {str(Path(fakes.__file__).parents[1])!r})

        @pytest.mark.world_size(1)
        @pytest.mark.parametrize("n", range(30))
        def test_a(n):
            if n == 3:
                import fake_driver
                driver = object.__new__(fake_driver.FakeDriver)
                driver.facts = {host.driver.facts | scenario!r}
                driver._scenario = Path({str(host.driver._scenario)!r})
                driver.set({{}})
            if n >= 3:
                raise RuntimeError("CUDA error: GPU is lost")
        """,
        test_b="""
        import pytest

        @pytest.mark.world_size(1)
        @pytest.mark.parametrize("n", range(30))
        def test_b(n): pass
        """,
    )
    ended = host.run(".")

    assert ended.exit_code == 7, ended.output
    first, second = ended.results_of("test_a"), ended.results_of("test_b")
    assert [first[f"test_a[{n}]"].outcome for n in range(3)] == [Outcome.PASSED] * 3
    died = first["test_a[3]"]
    assert (died.outcome, died.cause) == (Outcome.ERROR, Cause.INFRASTRUCTURE)
    label = f"GPU 0 ({fakes.uuid(0)}, {fakes.bus(0)})"
    why = f"{label} has vanished from the driver's list" if how == "vanishes" else f"{label}: GPU is lost"
    assert died.message.endswith(f"(not the test's fault: not run: {why} (0 of 1 needed devices are left))")
    rest = [first[f"test_a[{n}]"] for n in range(4, 30)]
    for results in (rest, list(second.values())):
        assert {result.message for result in results} == {f"not run: {why} (0 of 1 needed devices are left)"}
        assert [result.outcome for result in results] == [Outcome.ERROR] + [Outcome.SKIPPED] * (
            len(results) - 1
        )
    assert {result.cause for result in [rest[0], second["test_b[0]"]]} == {Cause.INFRASTRUCTURE}
    assert len(slots_of_worlds(ended)) == 4
    assert "3 passed" in ended.output


# --- between tests


def test_a_gpu_is_not_handed_on_while_the_driver_lists_the_last_rank(host):
    host = host(fakes.plain(1))
    host.write(
        test_x="""
        import pytest
        from pathlib import Path

        @pytest.mark.world_size(1)
        @pytest.mark.parametrize("n", range(2))
        def test_x(n):
            Path(f"ran{n}").touch()
            while n == 0 and not Path("go").exists():
                pass
        """
    )
    journal = host.folder / "results" / FILE_NAME
    process = host.start(".")
    wait_for((host.folder / "ran0").exists)
    host.driver.set({"gpu.0.processes": f"4242:{GIB}", "process.4242": "python"})
    (host.folder / "go").touch()
    wait_for(lambda: any(isinstance(event, WorldEnded) for event in read_events(journal)))
    time.sleep(1.2)  # long enough for a world to start, if that were allowed
    assert not (host.folder / "ran1").exists()
    host.driver.set({"gpu.0.processes": None})
    ended = host.end(process)

    assert ended.exit_code == 0, ended.output
    label = f"GPU 0 ({fakes.uuid(0)}, {fakes.bus(0)})"
    (slow,) = [event for event in ended.events if isinstance(event, Noted) and "still held" in event.message]
    assert slow.message.startswith(f"{label} is still held by python (pid 4242), 1.")
    assert slow.nodeid == "test_x.py::test_x[1xgloo-0]"


def test_what_a_test_leaves_is_named_with_it_and_cleaned(host):
    """Both tests run in one warm world; the first one leaves a process and a file in shared memory."""
    host = host(fakes.driver(0))
    name = f"disttest-left-{os.getpid()}"
    host.write(
        test_x=f"""
        import subprocess, time
        import pytest

        KEPT = []

        @pytest.mark.world_size(1)
        def test_leaves(world):
            subprocess.Popen(["sleep", "600"])
            KEPT.append(open("/dev/shm/{name}", "wb"))
            KEPT[0].write(b"x" * 4096)
            KEPT[0].flush()
            time.sleep(0.5)  # the world sees who has it in hand

        @pytest.mark.world_size(1)
        def test_tidy(world): pass
        """
    )
    ended = host.run(".")

    assert ended.exit_code == 0, ended.output
    told = {event.nodeid: [] for event in ended.events if isinstance(event, Noted)}
    for event in ended.events:
        if isinstance(event, Noted):
            told[event.nodeid].append(event.message)
    assert set(told) == {"test_x.py::test_leaves[1xgloo]"}, told
    process, memory = sorted(told["test_x.py::test_leaves[1xgloo]"])
    assert process.startswith("left a process, which was killed: ")
    assert process.endswith("(sleep 600)")
    assert memory == (
        f"shared memory {name} (4096 bytes) was left by test_x.py::test_leaves[1xgloo]; it was removed"
    )
    assert not Path("/dev/shm", name).exists()


def test_gpus_that_do_not_work_are_no_matter_to_a_plain_pytest_that_needs_none(host):
    host = host(fakes.plain(1) | {"gpu.0.error": 15})
    host.write(
        test_ordinary="def test_it(): pass",
        test_world="""
        import pytest

        @pytest.mark.world_size(1)
        def test_it(world): pass
        """,
    )

    def pytest_on(file):
        lab = Lab(host.folder, environ=host.environ)
        return lab.pytest(file, "--disttest-backend=gloo", f"--disttest-lease-dir={host.folder / 'leases'}")

    assert pytest_on("test_ordinary.py").exit_code == 0
    refused = pytest_on("test_world.py")
    assert refused.exit_code == 7, refused.output
    assert "this machine has GPUs and none can be used: GPU 0 is left out: GPU is lost" in refused.output


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("pytest", "-p", "disttest", "--collect-only"), "test_it[2xnccl]"),
        (("disttest", "run", "test_world.py", "--", "--collect-only"), "test_it[2xnccl]"),
        (("disttest", "list", "--tests", "test_world.py"), "test_it[2xnccl]"),
        (("disttest", "list", "--gpus", "2", "test_world.py"), "nccl"),
        (("disttest", "plan", "--shards", "1", "test_world.py"), "1 test in 1 shard"),
    ],
)
def test_listing_needs_no_gpu_that_works(host, words, shown):
    """What a run would take once they are mended, and a word that they are not."""
    host = host(fakes.plain(1) | {"gpu.0.error": 15})
    host.write(
        test_world="""
        import pytest

        @pytest.mark.world_size(2)
        def test_it(world): pass
        """
    )

    ended = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=host.folder,
        env=host.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    output = ended.stdout + ended.stderr

    assert ended.returncode == 0, output
    assert shown in output
    assert "listed as if GPUs worked here: this machine has GPUs and none can be used: GPU 0" in output
