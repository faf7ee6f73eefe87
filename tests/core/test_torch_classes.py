"""torch's own test classes, unchanged, under strict verdicts and under torch's."""

from __future__ import annotations

import shutil

import pytest
from lab import FAULTY_SUITES, Ended

from disttest.model import Outcome, RankEnd
from disttest.planning.targets import Targets
from disttest.runtime.supervisor.listing import collect_tests

ARGUMENTS = ("--disttest-host", "test_torch_classes.py", "-q", "--disttest-timeout=8")


@pytest.fixture(scope="module")
def strict(module_lab) -> Ended:
    shutil.copy(FAULTY_SUITES / "torch_classes.py", module_lab.folder / "test_torch_classes.py")
    return module_lab.pytest(*ARGUMENTS, results="strict")


@pytest.fixture(scope="module")
def lenient(module_lab, strict) -> Ended:
    return module_lab.pytest(
        *ARGUMENTS, "-k", "Crashes or Ordinary", "--disttest-verdict=torch", results="lenient"
    )


CRASHES = {
    "test_segfault": "was killed by SIGSEGV",
    "test_sigkill": "was killed by SIGKILL",
    "test_os_exit_0": "exited with code 0 in call, before it reported",
    "test_sys_exit_3": "exited with code 3",
}


@pytest.mark.covers("HN-103", "HN-108", "HN-109")
@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_of_any_rank_is_red_where_torch_stays_green(strict, lenient, name) -> None:
    ours = strict.result(f"Crashes::{name}")
    assert ours.outcome.is_bad
    assert ours.culprit == 1
    assert CRASHES[name] in ours.message
    assert ours.torch_outcome is Outcome.PASSED
    assert "torch's own rules would have passed this test" in ours.notes
    assert lenient.result(f"Crashes::{name}").outcome is Outcome.PASSED


def test_the_false_greens_are_counted_and_listed(strict) -> None:
    avoided = strict.run.false_greens
    assert {test.test.name for test in avoided} >= set(CRASHES)
    # Classes have tests of the same name, so the tests are counted by their ids.
    heading = f"torch's own rules would have passed {len(avoided)} of the failed tests:"
    told = strict.output[strict.output.index(heading) :]
    assert all(f"{test.test.nodeid}\n" in told for test in avoided)
    assert any(note.startswith(heading) for note in strict.run.notes)


@pytest.mark.covers("HN-070", "HN-083", "HN-086", "HN-092")
def test_ranks_run_the_method_and_write_a_log_each(strict) -> None:
    result = strict.result("Ordinary::test_passes")
    assert result.outcome is Outcome.PASSED
    assert [record.rank for record in result.ranks] == [0, 1]
    assert "I am rank 1" in strict.log("Ordinary::test_passes", 1)


def test_no_rank_is_spawned(strict) -> None:
    # The slow way (torch's own) is only for main processes that cannot be forked safely.
    logs = [path.read_text(errors="replace") for path in strict.results.glob("logs/*/*/main.log")]
    assert len(logs) > 20
    assert [text for text in logs if "spawned by torch" in text] == []


@pytest.mark.covers("HN-071", "HN-088", "HN-101", "HN-110")
def test_an_error_is_told_with_its_traceback(strict) -> None:
    result = strict.result("Ordinary::test_fails")
    assert result.outcome is Outcome.FAILED
    assert result.culprit == 1
    assert "only rank 0 is right" in result.details
    assert "AssertionError" in result.message


@pytest.mark.covers("HN-035", "HN-087", "HN-105")
def test_a_skip_carries_its_reason(strict) -> None:
    result = strict.result("Ordinary::test_skips")
    assert (result.outcome, result.message) == (Outcome.SKIPPED, "not today")


def test_a_skip_by_code_that_the_table_lacks_is_torchs_key_error(strict) -> None:
    # HN-038: torch's own decorator has no entry above 8 devices; ours has (disttest.testing).
    assert "KeyError" in strict.result("Ordinary::test_skips_by_code").message


@pytest.mark.covers("HN-109")
def test_one_rank_that_skips_alone_fails_the_test(strict) -> None:
    result = strict.result("Ordinary::test_one_rank_skips")
    assert (result.outcome, result.culprit) == (Outcome.FAILED, None)
    assert result.message == "ranks disagree: rank 0 passed, rank 1 skipped"
    assert "rank 1 skipped it: not me" in result.notes


def test_a_marked_skip_starts_no_world(strict) -> None:
    result = strict.result("Ordinary::test_marked_skip")
    assert (result.outcome, result.world_id) == (Outcome.SKIPPED, "")


def test_an_expected_failure_of_the_ranks_is_one(strict) -> None:
    assert strict.result("Ordinary::test_expected_failure").outcome is Outcome.XFAILED


def test_leaving_by_sys_exit_0_is_fine(strict) -> None:
    assert strict.result("Ordinary::test_exit_0").outcome is Outcome.PASSED
    assert strict.result("Apex::test_sum").outcome is Outcome.PASSED


def test_a_skip_code_does_not_undo_a_failure(strict) -> None:
    result = strict.result("FailsThenSkips::test_it")
    assert result.outcome is Outcome.FAILED
    assert "this is a failure" in result.message
    assert "a code for skips, which does not undo the failure" in result.message


@pytest.mark.covers("HN-104", "HN-106", "HN-113")
def test_a_test_may_say_which_codes_it_expects(strict) -> None:
    assert strict.result("Codes::test_abort").outcome is Outcome.PASSED
    assert strict.result("Codes::test_any_code").outcome is Outcome.PASSED
    assert "expects -6" in strict.result("Codes::test_no_abort").message
    assert "an error is an error" in strict.result("Codes::test_any_code_but_error").message


@pytest.mark.covers("HN-090", "HN-093", "HN-094", "HN-102", "HN-107")
def test_a_hang_ends_at_the_deadline_with_stacks(strict) -> None:
    result = strict.result("Hangs::test_hang")
    assert result.outcome is Outcome.FAILED
    assert "timed out after 8 s" in result.message
    assert "rank 1" in result.message
    assert result.ranks[1].hung
    assert "in test_hang" in result.ranks[1].stacks


@pytest.mark.covers("HN-091", "HN-111")
def test_a_death_ends_the_other_ranks_at_once(strict) -> None:
    result = strict.result("Hangs::test_peer_dies")
    assert result.culprit == 1
    assert result.ranks[0].end is RankEnd.KILLED
    assert not result.ranks[0].hung
    assert "timed out" not in result.message


@pytest.mark.covers("HN-100", "HN-173")
def test_a_class_that_starts_no_rank_has_tested_nothing(strict) -> None:
    assert "no rank was started, so nothing was tested" in strict.result("NoRanks::test_nothing").message
    assert "world size 0 is not a whole number from 1" in strict.result("SizeZero::test_it").message
    assert "world size 'two' is not a whole number from 1" in strict.result("SizeText::test_it").message
    assert strict.result("SizeNumberText::test_it").outcome is Outcome.PASSED


def test_ranks_that_nobody_waits_for_count(strict) -> None:
    result = strict.result("NeverWaits::test_it")
    assert result.outcome.is_bad
    assert "the test ended without waiting for this rank" in result.message


def test_the_main_process_is_named_when_it_failed(strict) -> None:
    result = strict.result("BadSetUp::test_it")
    assert result.message == "the main process failed: ValueError: set-up of the main process"
    assert result.culprit is None


def test_processes_that_a_class_started_by_itself_are_judged_too(strict) -> None:
    result = strict.result("OwnSpawn::test_rank_1_leaves_with_4")
    assert "rank 1 of 2 failed: exited with code 4" in result.message
    assert result.torch_outcome is Outcome.PASSED


@pytest.mark.covers("HN-115")
def test_torchs_other_ways_to_write_tests(strict) -> None:
    for name in ("Device::test_sum", "Parametrized::test_value_value_1", "Parametrized::test_value_value_2"):
        assert strict.result(name).outcome is Outcome.PASSED, name


@pytest.mark.covers("HN-185", "HN-186", "HN-187", "HN-188", "HN-189", "HN-190", "HN-191")
def test_ranks_of_a_whole_class_are_replaced_after_a_failure(strict) -> None:
    outcomes = [
        strict.result(f"Continuous::test_{name}").outcome for name in ("1_sum", "2_fails", "3_still_runs")
    ]
    assert outcomes == [Outcome.PASSED, Outcome.FAILED, Outcome.PASSED]
    assert "rank 1 is wrong" in strict.result("Continuous::test_2_fails").message
    assert strict.result("Continuous::test_4_skips").message == "not in this class"
    assert strict.result("Continuous::test_5_warm").outcome is Outcome.PASSED
    assert strict.result("Continuous::test_6_warm").outcome is Outcome.PASSED


@pytest.mark.covers("HN-133", "HN-134", "HN-136", "HN-137", "HN-138", "HN-139", "HN-140")
def test_threads_as_ranks(strict) -> None:
    assert strict.result("Threads::test_sum").outcome is Outcome.PASSED
    assert "thread 2 is wrong" in strict.result("Threads::test_fails").details
    hung = strict.result("Threads::test_hangs")
    assert hung.message.startswith("timed out after 8 s")
    assert "forever.wait" in hung.ranks[0].stacks or "in test_hangs" in hung.ranks[0].stacks


def test_the_bases_that_stack_on_torchs(module_lab) -> None:
    shutil.copy(FAULTY_SUITES / "torch_families.py", module_lab.folder / "test_torch_families.py")
    ended = module_lab.pytest("--disttest-host", "test_torch_families.py", "-q", results="families")
    outcomes = {test.test.nodeid.partition("::")[2]: test.final.outcome for test in ended.run.tests}

    assert outcomes == {
        "TestFsdp::test_shards": Outcome.SKIPPED,  # torch 2.13 wants a GPU for each rank of this base
        "TestFsdp::test_wrong": Outcome.SKIPPED,
        "TestFsdpThreads::test_shards": Outcome.PASSED,
        "TestFsdpThreads::test_wrong": Outcome.FAILED,
        "TestDTensor::test_redistribute": Outcome.PASSED,
        "TestDTensor::test_wrong": Outcome.FAILED,
        "TestEachDeviceCPU::test_sum_size_1_cpu": Outcome.PASSED,
        "TestEachDeviceCPU::test_sum_size_3_cpu": Outcome.PASSED,
        "TestEachDeviceCPU::test_wrong_cpu": Outcome.FAILED,
    }
    assert "rank 1 of 2 failed" in ended.result("TestDTensor::test_wrong").message


def test_a_name_that_does_not_exist(module_lab, strict) -> None:
    ended = module_lab.run("test_torch_classes.py::Ordinary::test_nope")

    assert ended.exit_code == 4, ended.output
    assert "not found" in ended.output
    assert "test_nope" in ended.output


@pytest.mark.slow("runs with and without the plugin, and both import torch")
def test_without_the_plugin_torch_is_as_it_was(module_lab, strict) -> None:
    module_lab.write(
        test_untouched="""
        from torch.testing._internal import common_distributed as torchs

        def test_torchs_own_code():
            for name in ("_spawn_processes", "_start_processes", "_join_processes", "join_or_run"):
                assert getattr(torchs.MultiProcessTestCase, name).__module__ == torchs.__name__
        """
    )
    files = ("test_untouched.py", "test_torch_classes.py")
    ended = module_lab.pytest(*files, "--disttest-host", "-k", "torchs_own or test_passes")
    assert ended.result("test_torchs_own_code").outcome is Outcome.PASSED, ended.output


@pytest.mark.parametrize(("asked", "limit_s"), [(None, 400), ("300", 300), ("299", 299)])
def test_a_time_limit_that_was_asked_for_wins_over_torchs(lab, tmp_path, asked, limit_s) -> None:
    lab.write(
        test_join="""
        from torch.testing._internal.common_distributed import MultiProcessTestCase

        class TestJoin(MultiProcessTestCase):
            def test_ddp_uneven_inputs(self):
                pass
        """
    )
    flags = {"results": str(tmp_path / "found"), "host": "true", **({"timeout": asked} if asked else {})}
    targets = Targets(arguments=(str(lab.folder),), bundled=False)
    (tmp_path / "found").mkdir()

    (test,) = collect_tests(targets, flags, (), tmp_path / "found").tests

    assert limit_s == test.timeout_s
