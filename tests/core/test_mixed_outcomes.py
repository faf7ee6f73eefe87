"""Ranks that come to different things: one verdict, and whoever tells it tells the same."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ET

import pytest
from lab import Ended

from disttest.model import Outcome

SUITE = """
    import time

    import pytest
    import torch.distributed as dist

    two = pytest.mark.world_size(2)
    strict = pytest.mark.xfail(strict=True, reason="known")
    each_rank = pytest.mark.parametrize("who", [0, 1])

    @pytest.fixture
    def late(world):
        yield
        pytest.skip("too late")

    @two
    def test_passed_all(world):
        pass

    @two
    @each_rank
    @strict
    def test_red_strict_xpass_and_a_skip(world, who):
        if world.rank == who:
            pytest.skip("not me")

    @two
    @each_rank
    def test_red_skipped_by_one(world, who):
        if world.rank == who:
            pytest.skip("not me")

    @two
    @each_rank
    def test_red_marked_by_one(world, request, who):
        if world.rank == who:
            request.applymarker(strict)
            assert 0

    @two
    @each_rank
    def test_red_marked_by_one_while_its_peer_waits(world, request, who):
        if world.rank == who:
            request.applymarker(strict)
            assert 0
        dist.barrier()

    @two
    @each_rank
    def test_red_not_run_by_one(who):
        pass  # without a group, which would wait for the other rank

    @two
    @strict
    def test_red_strict_xpass_with_a_late_skip(world, late):
        pass

    @strict
    def test_red_ordinary_strict_xpass_with_a_late_skip(request):
        request.addfinalizer(lambda: pytest.skip("too late"))

    @two
    @strict
    @pytest.mark.ranks_may_differ
    def test_red_strict_xpass_of_the_only_rank(world):
        if world.rank == 0:
            pytest.skip("not me")

    @two
    @each_rank
    @pytest.mark.ranks_may_differ
    def test_passed_by_those_that_ran(world, who):
        if world.rank == who:
            pytest.skip("not me")

    @two
    def test_passed_with_a_late_skip(world, late):
        pass

    @two
    @strict
    def test_xfailed_on_one(world):
        assert world.rank == 0
        dist.barrier()

    @two
    @pytest.mark.ranks_may_differ
    def test_red_fails_long_after_its_peer_has_given_up(world):
        if world.rank == 0:
            pytest.xfail("known")
        time.sleep(2)
        assert 0

    @two
    @pytest.mark.ranks_may_differ
    def test_xfailed_by_one_while_the_other_goes_on(world):
        if world.rank == 0:
            pytest.xfail("known")
        time.sleep(2)

    class Shard:
        def __eq__(self, other):
            return False

        def __repr__(self):
            time.sleep(3600)

    @two
    @pytest.mark.timeout(3)
    @pytest.mark.xfail(raises=ValueError, reason="only ValueError is known")
    def test_red_assertion_that_no_mark_covers_and_that_cannot_be_shown(world):
        if world.rank == 1:
            assert Shard() == 5
        time.sleep(3600)

    @two
    @pytest.mark.timeout(3)
    @pytest.mark.xfail(raises=AssertionError, reason="known")
    def test_xfailed_assertion_that_cannot_be_shown(world):
        if world.rank == 1:
            assert Shard() == 5
        time.sleep(3600)

    @two
    def test_uncalled_by_all(world):
        pass

    def test_uncalled_by_all_ordinary():
        pass
"""
WITH_SUBTESTS = """
    @two
    def test_red_subtest_skipped_by_one(world, subtests):
        with subtests.test("a"):
            if world.rank == 1:
                pytest.skip("not me")

    @two
    def test_passed_without_a_subtest(world, subtests):
        with subtests.test("a"):
            pytest.skip("nobody")
"""
"""Fixtures of pytest 9."""
HAS_SUBTESTS = int(pytest.__version__.partition(".")[0]) >= 9
if HAS_SUBTESTS:
    SUITE += WITH_SUBTESTS
PLUGIN = """
    import os

    def pytest_runtest_protocol(item, nextitem):
        who = getattr(item, "callspec", None) and item.callspec.params.get("who")
        if "not_run_by_one" in item.name:
            return True if os.environ["RANK"] == str(who) else None
        return True if "uncalled_by_all" in item.name else None
"""
KINDS = {"red": "failed", "uncalled": "not_run"}
SUITE_OF_ONE_FAILURE = """
    import os
    import pytest

    @pytest.mark.world_size(2)
    @pytest.mark.ranks_may_differ
    def test_gives_up(world, world_tmp_path):
        marker = world_tmp_path.parents[2] / "tried"
        if world.rank == 1:
            if marker.exists():
                pytest.skip("gives up")
            marker.touch()
            assert 0
"""
GOOD = """
    import pytest
    ran = []

    @pytest.mark.world_size(2)
    def test_world(world):
        raise AssertionError("must not run")

    def test_ordinary():
        raise AssertionError("must not run")
"""


@pytest.fixture(scope="module", params=["command", "pytest"])
def ended(request, module_lab) -> Ended:
    lab = module_lab.write(test_mixed=SUITE, conftest=PLUGIN)
    words = ("-v", "--junitxml=theirs.xml", "-o", f"cache_dir=cache-{request.param}")
    if request.param == "pytest":
        return lab.pytest("test_mixed.py", *words, results="plain")
    return lab.run("run", "test_mixed.py", "--", *words)


def said_by_name(ended: Ended) -> dict[str, str]:
    """What each test is to come to, by its name."""
    names = [test.test.name for test in ended.run.tests]
    return {name: KINDS.get(kind := name.split("_")[1], kind) for name in names}


def test_every_verdict_is_that_of_the_table(ended):
    wanted = said_by_name(ended)

    assert wanted == {test.test.name: test.final.outcome.value for test in ended.run.tests}
    assert (26 if HAS_SUBTESTS else 24) == len(wanted)


def test_a_disagreement_names_the_ranks_and_what_each_came_to(ended):
    messages = {
        "test_red_skipped_by_one[2xgloo-1]": "ranks disagree: rank 0 passed, rank 1 skipped",
        "test_red_marked_by_one[2xgloo-0]": "ranks disagree: rank 0 xfailed, rank 1 passed",
        "test_red_strict_xpass_and_a_skip[2xgloo-0]": (
            "ranks disagree: rank 0 skipped, rank 1 xpassed (strict)"
        ),
        "test_red_marked_by_one_while_its_peer_waits[2xgloo-1]": (
            "ranks disagree: rank 0 still running without an xfail mark, rank 1 xfailed"
        ),
        "test_red_not_run_by_one[2xgloo-1]": "ranks disagree: rank 0 passed, rank 1 did not run it",
    }
    assert messages == {name: ended.result(name).message for name in messages}
    assert {None} == {ended.result(name).culprit for name in messages}
    kinds = {
        case.get("name"): case.find("failure").get("type")
        for case in ended.junit().iter("testcase")
        if case.get("name") in messages
    }
    assert dict.fromkeys(messages, "ranks disagree") == kinds


def test_everybody_tells_the_same(ended):
    wanted = said_by_name(ended)
    red = {name for name, outcome in wanted.items() if outcome == "failed"}

    assert 1 == ended.exit_code
    assert red == _red_cases(ended.junit())
    assert red == _red_cases(ET.parse(ended.results.parent / "theirs.xml").getroot())
    # (pytest itself forgets an ordinary test whose tear-down skips.)
    assert red - {"test_red_ordinary_strict_xpass_with_a_late_skip"} == _remembered_by_last_failed(ended)
    assert wanted == _in_results_json(ended)
    assert wanted == _on_the_page(ended)
    summary = html.unescape((ended.results / "summary.md").read_text())
    assert f"{len(red)} failed" in summary
    assert {name: name in summary for name in red} == dict.fromkeys(red, True)
    assert re.search(rf"\b{len(red)} failed\b", ended.output)


def _red_cases(root: ET.Element) -> set[str]:
    return {
        case.get("name")
        for case in root.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    }


def _remembered_by_last_failed(ended: Ended) -> set[str]:
    which = "pytest" if ended.results.name == "plain" else "command"
    path = ended.results.parent / f"cache-{which}" / "v" / "cache" / "lastfailed"
    return {nodeid.partition("::")[2] for nodeid in json.loads(path.read_text())}


def _in_results_json(ended: Ended) -> dict[str, str]:
    tests = json.loads((ended.results / "results.json").read_text())["tests"]
    return {test["test"]["name"]: test["attempts"][-1]["outcome"] for test in tests}


def _on_the_page(ended: Ended) -> dict[str, str]:
    page = (ended.results / "report.html").read_text()
    data = json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    )
    return {row[0].partition("::")[2]: data["kinds"][row[3]] for row in data["tests"]}


@pytest.mark.parametrize(("way", "flag"), [("command", "--setup-only"), ("pytest", "--setup-plan")])
def test_where_nothing_is_called_nothing_ran(lab, way, flag):
    lab.write(test_good=GOOD)
    ended = (
        lab.pytest("test_good.py", flag) if way == "pytest" else lab.run("run", "test_good.py", "--", flag)
    )

    assert 5 == ended.exit_code, ended.output
    assert [Outcome.NOT_RUN] * 2 == [test.final.outcome for test in ended.run.tests]
    assert ended.result("test_world").message.startswith("no test ran: ")
    assert ended.result("test_ordinary").message.startswith("no test ran: ")
    assert "no test ran" in ended.output


def test_a_retry_without_the_rank_that_failed_does_not_undo_the_failure(lab):
    ended = lab.write(test_flaky=SUITE_OF_ONE_FAILURE).run("test_flaky.py", "--retries", "1")

    assert 1 == ended.exit_code
    (test,) = ended.run.tests
    assert ([Outcome.FAILED] * 2, False) == ([attempt.outcome for attempt in test.attempts], test.flaky)
    assert test.final.message.endswith("(attempt 2 passed without rank 1, which skipped)")


def test_a_method_that_unittest_expects_to_fail_ends_the_wait_of_its_peer(lab):
    lab.write(
        test_method="""
        import unittest
        import pytest
        import torch.distributed as dist
        from disttest.testing import current_world

        class Methods(unittest.TestCase):
            @pytest.mark.world_size(2)
            @unittest.expectedFailure
            def test_known(self):
                assert current_world().rank == 0
                dist.barrier()
        """
    )
    ended = lab.run("test_method.py")

    assert Outcome.XFAILED is ended.result("test_known").outcome, ended.output
