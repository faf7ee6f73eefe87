"""The fault matrix: one run of everything that ranks do wrong; each verdict right, and nobody else harmed.

`make faults` runs all of its cells, `make test` each fault in each phase once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from fault_matrix import all_cells, reduced_cells
from lab import FAULTY_SUITES, Ended, Lab

from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

HURRY = """
    import disttest.runtime.controller.world_pool

    disttest.runtime.controller.world_pool.WORLD_SILENCE_S = 3.0
"""
TESTS = """
    import os, pathlib, time, pytest
    import torch.distributed as dist
    import faults

    pytestmark = pytest.mark.world_size(2)

    @pytest.fixture
    def slow_setup(world):
        yield
        while world.rank == 0 and not os.path.exists(os.environ["MISDEED_MARKER"]):
            time.sleep(0.001)

    def test_between(world, slow_setup):
        if world.rank == 1:
            faults.is_killed_when_it_waits_for_its_next_test()

    def test_shm(world):
        if world.rank == 1:
            faults.fills_shared_memory()
        dist.barrier()

    def test_memory(world):
        if world.rank == 1:
            faults.takes_all_memory()
        dist.barrier()

    @pytest.mark.timeout(1)
    def test_unkillable(world):
        if world.rank == 1:
            faults.freezes_itself()
        dist.barrier()

    def test_good(world):
        dist.barrier()
"""


def take_faulty_suites(lab: Lab, *names: str) -> Lab:
    for name in names:
        shutil.copy(FAULTY_SUITES / f"{name}.py", lab.folder)
    return lab


@pytest.fixture(scope="module")
def is_full(request) -> bool:
    return request.config.getoption("--full")


@pytest.fixture(scope="module")
def ended(module_lab, is_full) -> Ended:
    take_faulty_suites(module_lab, "matrix", "faults").write(conftest=HURRY)
    return module_lab.run(
        *("run", "matrix.py", "--slots", "8"),
        DISTTEST_LOG_LIMIT="1m",
        limit_s=1200 if is_full else 240,
        FAULT_CELLS="full" if is_full else "reduced",
        MISDEED_FLOOD=str((1024 if is_full else 32) << 20),
    )


def pytest_generate_tests(metafunc):
    if "cell" in metafunc.fixturenames:
        chosen = all_cells() if metafunc.config.getoption("--full") else reduced_cells()
        metafunc.parametrize("cell", list(chosen), ids=str)


def test_verdict_and_culprit(ended, cell):
    results = [test.final for test in ended.run.tests if cell.is_in(test.test.name)]

    assert 1 == len(results), ended.output
    assert "" == cell.check(results[0])


def test_the_tests_after_them_pass(ended):
    others = {test.test.name: test.final for test in ended.run.tests if "good" in test.test.name}

    assert len(others) == len(ended.run.tests) / 2
    assert {} == {name: each.message for name, each in others.items() if each.outcome is not Outcome.PASSED}


def test_the_reports_are_whole(ended):
    cases = list(ended.junit().iter("testcase"))

    assert 1 == ended.exit_code
    assert len(ended.run.tests) == len(cases)
    for name in ("summary.md", "results.json", "report.html"):
        assert (ended.results / name).stat().st_size > 0


def test_what_was_left_in_shared_memory_is_named_and_gone(ended):
    """(That nothing of it is left is checked by the fixture `nothing_left`.)"""
    said = [*ended.run.notes, *(note for test in ended.run.tests for note in test.final.notes)]
    tests = (
        "",
        *(f"{test.test.nodeid}: " for test in ended.run.tests),
    )  # named first where only one can have left it
    notes = [note for note in said if note.startswith(tuple(f"{test}shared memory psm_" for test in tests))]

    assert notes
    assert all("removed" in note for note in notes)


def test_a_rank_that_dies_between_tests_turns_the_last_one_red(lab):
    marker = str(lab.folder / "killed")
    ended = (
        take_faulty_suites(lab, "faults")
        .write(test_x=TESTS)
        .run("test_x.py", "--", "-k", "between or good", MISDEED_MARKER=marker)
    )

    result = ended.result("test_between")
    assert (Outcome.ERROR, 1) == (result.outcome, result.culprit)
    assert "rank 1 of 2 was killed by SIGKILL after it had finished the test" == result.message
    assert Outcome.PASSED is ended.result("test_good").outcome


def test_full_shared_memory(lab):
    """In a mount namespace with 16 MiB of it, so that nobody else runs out."""
    small = 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"'
    ended = (
        take_faulty_suites(lab, "faults")
        .write(test_x=TESTS)
        .run("test_x.py", "--", "-k", "shm or good", wrapper=["unshare", "-m", "sh", "-c", small, "sh"])
    )

    result = ended.result("test_shm")
    assert (Outcome.FAILED, 1) == (result.outcome, result.culprit)
    assert "rank 1 of 2 failed: OSError: [Errno 28] No space left on device" == result.message
    assert Outcome.PASSED is ended.result("test_good").outcome
    assert any("shared memory fills-" in note and "it was removed" in note for note in ended.run.notes)


@contextlib.contextmanager
def control_group(controller: str, **settings: str):
    """A cgroup of version 1 or 2, or a skip where none can be made (no root, or a read-only /sys)."""
    tops = {Path("/sys/fs/cgroup", controller): 1, Path("/sys/fs/cgroup"): 2}
    top = next((top for top in tops if (top / "cgroup.procs").exists()), None)
    group = top / f"disttest-{os.getpid()}" if top else None
    try:
        if group is None or (tops[top] == 2 and controller not in (top / "cgroup.controllers").read_text()):
            raise OSError("no such controller")
        group.mkdir()
        for name, value in settings.items():
            (group / name.replace("__", ".")).write_text(value)
    except OSError as error:
        pytest.skip(f"no {controller} cgroup can be made here: {error}")
    try:
        yield group
    finally:
        group.rmdir()


def test_out_of_memory_is_said_by_the_cgroups_own_count(lab):
    version_1 = Path("/sys/fs/cgroup/memory/cgroup.procs").exists()
    limit = {"memory__limit_in_bytes" if version_1 else "memory__max": str(800 << 20)}
    with control_group("memory", **limit) as group:
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        ended = (
            take_faulty_suites(lab, "faults")
            .write(test_x=TESTS)
            .run("test_x.py", "--", "-k", "memory or good", wrapper=["sh", "-c", enter, "sh"])
        )

    result = ended.result("test_memory")
    assert (Outcome.ERROR, 1) == (result.outcome, result.culprit), ended.output
    assert (
        "rank 1 of 2 was killed by SIGKILL in call, before it reported: the kernel ran out of memory for it "
        "(800 MiB, the limit of its cgroup)" == result.message
    )
    assert Outcome.PASSED is ended.result("test_good").outcome


def test_a_process_that_can_not_be_killed_costs_its_slots_and_nothing_else(lab):
    if not Path("/sys/fs/cgroup/freezer/cgroup.procs").exists():
        pytest.skip("cgroup version 1 has the only freezer that holds against SIGKILL")
    with control_group("freezer") as group:
        try:
            ended = (
                take_faulty_suites(lab, "faults")
                .write(test_x=TESTS)
                .run(
                    *("test_x.py", "--slots", "4", "--", "-k", "unkillable or good"),
                    MISDEED_FREEZER=str(group),
                )
            )
        finally:
            frozen = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
            (group / "freezer.state").write_text("THAWED")
            for pid in frozen:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    result = ended.result("test_unkillable")
    assert (Outcome.FAILED, 1) == (result.outcome, result.culprit), ended.output
    assert "rank 1 is in an uninterruptible sleep in the kernel" in result.message
    assert Outcome.PASSED is ended.result("test_good").outcome
    assert any("could not be killed" in note for note in ended.run.notes), ended.run.notes
