"""Failed tests are tried again in new worlds; what passes then is flaky, and stays visible."""

from __future__ import annotations

import json
import signal
import time

import pytest
from lab import Ended, Lab

from disttest.model import Cause, Outcome

# Each rank remembers in a file that it has been here: files outlive worlds.
FLAKY = """
    import os, pathlib, signal, pytest
    import torch.distributed as dist

    def been_here(name, rank):
        marker = pathlib.Path(f"{name}.{rank}")
        was = marker.exists()
        marker.touch()
        return was

    @pytest.fixture(scope="class")
    def prepared():
        yield os.getpid()

    @pytest.mark.world_size(2)
    class TestInOneWorld:
        def test_before(self, world, prepared):
            dist.barrier()

        def test_flaky(self, world, prepared):
            print(f"rank {world.rank} in {os.getpid()}, prepared by {prepared}")
            assert prepared == os.getpid()
            if not been_here("flaky", world.rank) and world.rank == 1:
                raise ValueError("not yet")
            dist.barrier()

        def test_after(self, world, prepared):
            dist.barrier()

    @pytest.mark.world_size(2)
    def test_always(world):
        assert world.rank == 0, "never on rank one"

    @pytest.mark.world_size(2)
    def test_skips_later(world):
        if been_here("skips", world.rank):
            pytest.skip("no more")
        assert world.rank == 0, "failed first"

    @pytest.mark.world_size(1)
    def test_loses_its_world(world):
        if not been_here("loses", world.rank):
            os.kill(os.getppid(), signal.SIGKILL)

    def test_ordinary():
        assert False, "an ordinary failure"
"""
HOSTED = """
    import os, pathlib
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.common_utils import run_tests

    class TestHosted(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_hosted(self):
            marker = pathlib.Path(f"hosted.{self.rank}")
            first = not marker.exists()
            marker.touch()
            print("hosted rank", self.rank)
            assert not first or self.rank == 0, "first time"
"""


@pytest.fixture(scope="module")
def ended(module_lab: Lab) -> Ended:
    return module_lab.write(test_flaky=FLAKY, test_hosted=HOSTED).run(
        ".", "--retries", "2", "--infra-retries", "1", "--slots", "4"
    )


def attempts(ended: Ended, name: str) -> list[Outcome]:
    (found,) = [test for test in ended.run.tests if name in test.test.nodeid]
    return [attempt.outcome for attempt in found.attempts]


def test_what_passes_in_a_new_world_is_flaky_and_all_attempts_are_kept(ended: Ended) -> None:
    assert [Outcome.FAILED, Outcome.PASSED] == attempts(ended, "test_flaky[")
    assert [Outcome.FAILED, Outcome.PASSED] == attempts(ended, "test_hosted")
    assert [Outcome.PASSED] == attempts(ended, "test_before")
    assert [Outcome.PASSED] == attempts(ended, "test_after")
    flaky = next(test for test in ended.run.tests if "test_flaky[" in test.test.nodeid)
    assert flaky.flaky
    first, second = flaky.attempts
    assert first.world_id != second.world_id
    logs = [(ended.results / rank.log).read_text() for rank in (first.ranks[1], second.ranks[1])]
    assert [f"logs/{flaky.test.slug}/attempt-{n}/rank1.log" for n in (1, 2)] == [
        first.ranks[1].log,
        second.ranks[1].log,
    ]
    assert logs[0] != logs[1]
    assert f"rank 1 in {second.ranks[1].pid}, prepared by {second.ranks[1].pid}" in logs[1]


def test_hosted_ranks_write_into_the_folder_of_their_attempt(ended: Ended) -> None:
    hosted = next(test for test in ended.run.tests if "test_hosted" in test.test.nodeid)

    for number, attempt in enumerate(hosted.attempts, 1):
        folder = f"logs/{hosted.test.slug}/attempt-{number}/"
        assert all(rank.log.startswith(folder) for rank in attempt.ranks)
        assert "hosted rank 1" in (ended.results / folder / "rank1.log").read_text()


def test_a_failure_that_stays_is_one_failure(ended: Ended) -> None:
    assert 3 * [Outcome.FAILED] == attempts(ended, "test_always")
    assert 1 == ended.exit_code
    assert 2 == ended.output.count("↻ test_flaky.py::test_always[2xgloo] failed at attempt")
    assert 1 == ended.output.count("✗ test_flaky.py::test_always[2xgloo] failed")
    cases = [case for case in ended.junit().iter("testcase") if case.get("name") == "test_always[2xgloo]"]
    assert [1] == [len(case.findall("failure")) for case in cases]


def test_a_skip_does_not_undo_a_failure(ended: Ended) -> None:
    assert [Outcome.FAILED, Outcome.FAILED] == attempts(ended, "test_skips_later")[:2]
    final = ended.result("test_skips_later")
    assert "failed first" in final.message
    assert "skipped: no more" in final.message


def test_a_broken_world_is_tried_again_on_its_own_budget_and_the_reason_noted(ended: Ended) -> None:
    lost = next(test for test in ended.run.tests if "test_loses_its_world" in test.test.nodeid)

    assert [Outcome.ERROR, Outcome.PASSED] == [attempt.outcome for attempt in lost.attempts]
    assert Cause.INFRASTRUCTURE is lost.attempts[0].cause
    (note,) = [note for note in ended.run.notes if "infrastructure, tried again in" in note]
    assert "test_loses_its_world" in note
    assert "ended with SIGKILL" in note


def test_ordinary_tests_are_not_tried_again_and_the_run_says_why(ended: Ended) -> None:
    assert [Outcome.FAILED] == attempts(ended, "test_ordinary")
    assert any("--retries is for tests with a world" in note for note in ended.run.notes)


def test_every_report_shows_the_flaky_test(ended: Ended) -> None:
    name = "TestInOneWorld::test_flaky[2xgloo]"
    assert f"{name}: passed at attempt 2; attempt 1: rank 1 of 2 failed: ValueError: not yet" in ended.output
    case = next(case for case in ended.junit().iter("testcase") if case.get("name") == "test_flaky[2xgloo]")
    assert "ValueError: not yet" in case.find("flakyFailure").get("message")
    assert case.find("failure") is None
    assert "### Flaky" in (ended.results / "summary.md").read_text()
    assert "flaky" in (ended.results / "report.html").read_text()
    content = json.loads((ended.results / "results.json").read_text())
    (stored,) = [test for test in content["tests"] if test["test"]["nodeid"].endswith(name)]
    assert 2 == len(stored["attempts"])


def test_flaky_can_fail_the_run_under_the_command_and_under_pytest(lab: Lab) -> None:
    lab.write(test_flaky=FLAKY)
    guarded = lab.run("test_flaky.py", "--retries", "1", "--flaky", "fail", "--", "-k", "TestInOneWorld")
    for marker in lab.folder.glob("flaky.*"):
        marker.unlink()
    plain = lab.pytest(
        "--disttest-retries=1", "--disttest-flaky=fail", "-k", "TestInOneWorld", results="plain"
    )

    assert (1, 1) == (guarded.exit_code, plain.exit_code), plain.output
    assert guarded.run.bad == ()
    assert 1 == int(guarded.junit().get("failures"))
    assert "--flaky=fail: 1 test passed only when tried again" in guarded.output
    assert "1 rerun" in plain.output
    assert "TestInOneWorld::test_flaky[2xgloo]: passed at attempt 2" in plain.output
    assert "FAILED" not in plain.output


def test_stop_at_first_failure_and_last_failed_see_final_failures_only(lab: Lab) -> None:
    lab.write(test_flaky=FLAKY)
    ended = lab.pytest(
        "-x", "--disttest-retries=1", "--disttest-slots=2", "-k", "TestInOneWorld or test_always"
    )
    failed = json.loads((lab.folder / ".pytest_cache/v/cache/lastfailed").read_text())

    assert 1 == ended.exit_code, ended.output
    assert [Outcome.FAILED, Outcome.FAILED] == attempts(ended, "test_always")
    assert ["test_flaky.py::test_always[2xgloo]"] == [*failed]
    assert "stopping after 1 failures" in ended.output


def test_a_run_that_stops_leaves_the_failure_that_was_being_tried_again(lab: Lab) -> None:
    lab.write(
        test_late="""
        import time, pathlib, pytest

        @pytest.mark.world_size(1)
        def test_late(world):
            if pathlib.Path("been").exists():
                pathlib.Path("again").touch()
                time.sleep(600)
            pathlib.Path("been").touch()
            raise ValueError("the first failure")
        """
    )
    process = lab.start("test_late.py", "--retries", "3")
    deadline = time.monotonic() + 120
    while not (lab.folder / "again").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)

    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)

    result = Ended(process.returncode, output, lab.folder / "results").result("test_late")
    assert 128 + signal.SIGINT == process.returncode
    assert "the first failure (attempt 2 was cut short)" in result.message
    assert (Outcome.FAILED, Cause.TEST) == (result.outcome, result.cause)
