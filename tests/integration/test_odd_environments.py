"""Folders, texts and ends of processes that machines of users have, and that lose no verdict."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from lab import Lab

from disttest.model import Outcome

HUGE = """
    import pytest

    HUGE = "z" * (70 << 20)

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("end", [pytest.skip, pytest.fail], ids=["skip", "fail"])
    def test_ranks(world, end):
        end(HUGE)

    def test_ordinary():
        pytest.fail(HUGE)
"""


@pytest.mark.slow("sends texts of many megabytes")
def test_texts_larger_than_a_message_are_cut_and_lose_no_verdict(lab: Lab) -> None:
    ended = lab.write(test_huge=HUGE).run("test_huge.py")

    assert Outcome.SKIPPED is ended.result("test_ranks[2xgloo-skip]").outcome
    for name in ("test_ranks[2xgloo-fail]", "test_ordinary"):
        result = ended.result(name)
        assert Outcome.FAILED is result.outcome
        assert "Failed: zzz" in result.message
    assert (ended.results / "events.jsonl").stat().st_size < 8 << 20
    assert "over the limit" not in ended.output


def test_a_rank_that_removes_the_temporary_folder_and_hangs_is_the_culprit(lab: Lab) -> None:
    temporary = lab.folder / "temporary"
    temporary.mkdir()
    lab.write(
        test_removes="""
        import os
        import shutil
        import signal

        import pytest
        import torch.distributed as dist

        @pytest.mark.world_size(3)
        @pytest.mark.timeout(2)
        def test_removes(world):
            if world.rank == 1:
                shutil.rmtree(os.environ["TO_REMOVE"])
                signal.pause()
            dist.barrier()
        """
    )

    ended = lab.run("test_removes.py", TMPDIR=str(temporary), TO_REMOVE=str(temporary))

    result = ended.result("test_removes")
    assert (Outcome.FAILED, 1, (0, 2)) == (result.outcome, result.culprit, result.victims)


def test_collection_of_spmd_ranks_has_the_time_limit_of_their_tests(lab: Lab) -> None:
    lab.write(
        test_hangs="""
        import os
        import signal

        if os.environ.get("RANK") == "1":
            signal.pause()

        def test_one():
            pass
        """
    )

    ended = lab.run("test_hangs.py", "--spmd", "2", "--timeout", "2", limit_s=100)

    result = ended.result("test_one")
    assert (Outcome.FAILED, 1) == (result.outcome, result.culprit)
    assert "timed out after 2 s: rank 1 of 2 still in collection; rank 0 had finished" == result.message


@pytest.mark.parametrize("code", [0, 5])
def test_an_end_in_the_hook_of_a_conftest_is_said_to_be_there(lab: Lab, code: int) -> None:
    lab.write(
        conftest=f"import os\n\ndef pytest_sessionfinish(session):\n    os._exit({code})\n",
        test_one="def test_one():\n    pass\n",
    )

    ended = lab.run("test_one.py")

    assert 3 == ended.exit_code
    assert (
        f"the pytest process ended with exit code {code} in the middle of the run, while running "
        "pytest_sessionfinish of a conftest or a plugin"
    ) in " ".join(ended.output.split())


def test_a_folder_whose_name_is_not_utf_8_is_refused_for_worlds_only(lab: Lab) -> None:
    odd = os.fsdecode(os.fsencode(lab.folder) + b"/odd-\xff")
    Path(odd).mkdir()
    inside = Lab(Path(odd))
    inside.write(
        test_ranks="import pytest\n\n@pytest.mark.world_size(2)\ndef test_ranks(world):\n    pass\n",
        test_plain="def test_plain():\n    pass\n",
    )
    try:
        refused, plain = inside.run("test_ranks.py"), inside.run("test_plain.py")
    finally:
        shutil.rmtree(odd)

    assert 4 == refused.exit_code
    assert r"odd-\udcff is not UTF-8, and tests with a world need paths that are" in refused.output
    assert "infrastructure" not in refused.output
    assert 0 == plain.exit_code, plain.output


def test_ranks_and_isolated_files_have_the_number_of_threads_that_the_user_sets(lab: Lab) -> None:
    lab.write(
        test_threads="""
        import os
        import pytest
        import torch

        @pytest.mark.world_size(1)
        def test_rank(world):
            assert ("3,1", 3) == (os.environ["OMP_NUM_THREADS"], torch.get_num_threads())

        def test_isolated():
            test_rank(None)
        """
    )
    ended = lab.run(".", "--isolate-files", OMP_NUM_THREADS="3,1")

    for name in ("test_rank", "test_isolated"):
        assert Outcome.PASSED is ended.result(name).outcome, ended.output


@pytest.mark.slow("two runs: all tests, and those that failed")
def test_a_file_outside_of_the_root_directory(lab: Lab) -> None:
    """pytest leaves the file out of its ids."""
    (lab.folder / "package").mkdir()
    lab.write(
        test_outside="""
        import pytest

        @pytest.mark.world_size(1)
        def test_ranks(world):
            pass

        def test_ordinary():
            assert 0
        """
    )

    ended = lab.run("run", "test_outside.py", "--", "--rootdir=package")

    assert 1 == ended.exit_code, ended.output
    assert {"test_outside"} == {case.get("classname") for case in ended.junit().iter("testcase")}
    assert "repeat: disttest run test_outside.py::test_ordinary" in ended.output
    again = lab.run("run", "--last-failed", "--", "--rootdir=package")
    assert ["test_ordinary"] == [test.test.name for test in again.run.tests]
