"""The results directory is removed, or its disk fills, while a run writes into it: a clear end, no traceback."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Ended, Lab

from disttest.model import Outcome
from disttest.results.directory import REMOVED

pytestmark = pytest.mark.forked_runs

REMOVES = """
    import os, shutil, pytest
    import torch.distributed as dist

    def removed(folder):
        try:
            shutil.rmtree(folder)
        except OSError:
            return False
        return True

    @pytest.mark.world_size(2)
    def test_before(world):
        pass

    @pytest.mark.world_size(2)
    def test_removes(world):
        print("said before")
        dist.barrier()
        if world.rank == 0:
            # Others may write there meanwhile: the folder is not empty then.
            while os.path.exists(RESULTS) and not removed(RESULTS):
                pass
        dist.barrier()
        print("said after")

    @pytest.mark.world_size(2)
    def test_after(world):
        print("all is well")

    @pytest.mark.world_size(2)
    @pytest.mark.fresh_world
    def test_fails(world):
        assert world.rank == 0
"""


def check_restored(ended: Ended) -> None:
    assert 1 == ended.exit_code, ended.output
    assert "Traceback" not in ended.output
    assert "INTERNALERROR" not in ended.output
    outcomes = {test.test.name.partition("[")[0]: test.final.outcome for test in ended.run.tests}
    assert outcomes.pop("test_fails") is Outcome.FAILED
    assert {"test_before", "test_removes", "test_after"} == set(outcomes)
    assert {Outcome.PASSED} == set(outcomes.values()), ended.output
    assert any(REMOVED in note for note in ended.run.notes)
    assert 4 == len(list(ended.junit().iter("testcase")))


@pytest.mark.parametrize("way", ["command", "pytest"])
def test_a_removed_directory_is_restored_with_all_results(lab: Lab, way: str) -> None:
    lab.write(test_removes=REMOVES.replace("RESULTS", repr(str(lab.folder / "results"))))
    arguments = ("test_removes.py", "-p", "no:cacheprovider")
    ended = lab.run("test_removes.py") if way == "command" else lab.pytest(*arguments)

    check_restored(ended)


@pytest.fixture
def small_disk(lab: Lab) -> Iterator[Path]:
    """A disk of 512 KiB (it takes root to mount one)."""
    disk = lab.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


FILLS = """
    import os, pathlib, pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_before(world):
        pass

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("number", range(8))
    def test_fills(world, number):
        if world.rank == 0 and number == 0:
            with open(os.path.join(DISK, "ballast"), "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 512)
                except OSError:
                    pass
        dist.barrier()

    def test_ordinary():
        pass
"""


@pytest.mark.parametrize("way", ["command", "pytest"])
def test_a_full_disk_ends_the_run_as_a_fault_of_the_machine(lab: Lab, small_disk: Path, way: str) -> None:
    lab.write(test_fills=FILLS.replace("DISK", repr(str(small_disk))))
    results = str(small_disk / "results")
    if way == "command":
        ended = lab.run("test_fills.py", "--results", results, "--slots", "2")
    else:
        ended = lab.pytest("test_fills.py", "--disttest-slots=2", results=results)

    assert 7 == ended.exit_code, ended.output
    assert "cannot be written any more: No space left on device" in ended.output
    assert "free space, or choose another place with --results" in ended.output
    assert "could not write " in ended.output
    assert "report.html: OSError: [Errno 28] No space left on device" in ended.output
    assert "Traceback" not in ended.output
    assert "INTERNALERROR" not in ended.output


def test_what_was_written_before_the_disk_was_full_is_whole(lab: Lab, small_disk: Path) -> None:
    lab.write(test_fills=FILLS.replace("DISK", repr(str(small_disk))))
    ended = lab.run("test_fills.py", "--results", str(small_disk / "results"), "--slots", "2")
    (small_disk / "ballast").unlink()

    again = lab.run("report", str(small_disk / "results"))

    assert 7 == ended.exit_code
    assert 0 == again.exit_code, again.output
    run = Ended(0, "", small_disk / "results").run
    assert 10 == len(run.tests)
    assert Outcome.PASSED is Ended(0, "", small_disk / "results").result("test_before").outcome
    assert not any("not an event" in note for note in run.notes)


@pytest.mark.slow("each node is a new interpreter")
@pytest.mark.parametrize("room", [0, 24 * 1024], ids=["for nothing", "for events and no log"])
def test_a_full_disk_ends_a_run_on_nodes_as_a_fault_of_the_machine(
    lab: Lab, small_disk: Path, room: int
) -> None:
    prints = """
    @pytest.mark.world_size(2)
    def test_prints(world):
        print("x" * 40_000)
    """
    source = FILLS.replace("DISK", repr(str(small_disk))).replace(
        "pass\n        dist", f"file.truncate(file.tell() - {room})\n        dist"
    )
    lab.write(test_fills=source + prints)

    ended = lab.run("test_fills.py", "--launcher", "local", "--results", str(small_disk / "results"))

    assert 7 == ended.exit_code, ended.output
    words = " ".join(ended.output.split())
    assert 1 == words.count("cannot be written any more: No space left on device. The run ends here")
    assert "Traceback" not in ended.output
    assert "disttest: reports and logs in " in ended.output
