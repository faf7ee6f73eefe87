"""A plan's shards run exactly their tests, merge into one result, and floors turn an empty success red."""

import json
import shutil

import pytest

from disttest.model import Outcome
from disttest.results.events import TestStarted
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, read_events

pytestmark = pytest.mark.forked_runs

TESTS = """
    import pytest

    @pytest.mark.world_size(1, 2)
    @pytest.mark.parametrize("number", range(3))
    def test_planned(world, number):
        assert world.size in (1, 2)
"""
NEW = """
    import pytest

    @pytest.mark.world_size(1)
    def test_new(world):
        pass
"""


def test_shards_run_their_tests_and_merge(lab):
    lab.write(test_planned=TESTS)
    planned = lab.run("plan", "test_planned.py", "--shards", "2", "--revision", "abc")
    plan = json.loads((lab.folder / "plan.json").read_text())
    numbers = [shard["number"] for shard in plan["shards"]]
    assert 0 == planned.exit_code, planned.output
    assert 2 == len(numbers)

    lab.write(test_new=NEW, test_planned=TESTS.replace("range(3)", "range(2)"))
    ids = []
    for number in numbers:
        ended = lab.run(".", "--plan", "plan.json", "--shard", str(number), "--revision", "abc")
        assert 0 == ended.exit_code, ended.output
        ids += [test.test.nodeid for test in ended.run.tests]
        shutil.move(ended.results, lab.folder / f"shard-{number}")
    assert 5 == len(ids) == len(set(ids)), "every planned test once, and the new one in the last shard"

    merged = lab.run("merge", *[f"shard-{number}" for number in numbers], "--plan", "plan.json")
    again = lab.run("merge", "merged", "--plan", "plan.json", "--results", "again")
    run = fold(read_events(lab.folder / "merged" / FILE_NAME))
    assert (0, 0) == (merged.exit_code, again.exit_code), merged.output + again.output
    assert {Outcome.PASSED} == {test.final.outcome for test in run.tests}
    assert 5 == len(run.tests)
    assert all(shard.run_id and shard.slots for shard in run.shards)

    lost = lab.run("merge", f"shard-{numbers[0]}", "--results", "incomplete")
    assert 0 != lost.exit_code
    other = lab.run(".", "--plan", "plan.json", "--shard", "1", "--revision", "def")
    assert 4 == other.exit_code
    assert "the plan was made for abc" in other.output


def test_a_plan_for_gpus_is_made_without_any_and_refused_where_there_are_none(lab):
    lab.write(
        test_planned="""
        import pytest

        @pytest.mark.world_size()
        def test_sizes(world): pass

        @pytest.mark.world_size(2)
        @pytest.mark.device("cpu")
        def test_on_cpu(world): pass
        """
    )
    pools = ("--pool", "gpu1:1:1", "--pool", "gpu4:4:1")
    planned = lab.run("plan", "test_planned.py", *pools, "--device", "cuda")
    plan = json.loads((lab.folder / "plan.json").read_text())

    assert 0 == planned.exit_code, planned.output
    assert {
        "gpu1": ["test_sizes[1xnccl]", "test_on_cpu[2xgloo]"],
        "gpu4": ["test_sizes[2xnccl]", "test_sizes[4xnccl]"],
    } == {shard["pool"]: [test["name"] for test in shard["tests"]] for shard in plan["shards"]}

    refused = lab.run("test_planned.py", "--plan", "plan.json", "--shard", "1")
    assert 6 == refused.exit_code, refused.output
    assert "shard 1 of the plan has worlds on GPUs (1xnccl), and this run has no GPU" in refused.run.reason
    assert () == refused.run.tests


def test_timings_of_an_earlier_run_are_read_and_what_failed_there_is_first(lab):
    lab.write(test_planned=TESTS, test_zz=NEW.replace("pass", "assert False"))
    lab.run(".", "--slots", "1")
    lab.folder.joinpath("results").rename(lab.folder / "first")
    (lab.folder / "broken.json").write_text("{")

    options = ("--timings", "first/junit.xml", "--timings", "broken.json", "--failed-first", "--slots", "1")
    ended = lab.run(".", *options)

    assert 1 == ended.exit_code, ended.output
    assert any("broken.json" in note for note in ended.run.notes)
    started = [
        event.nodeid for event in read_events(ended.results / FILE_NAME) if isinstance(event, TestStarted)
    ]
    assert "test_zz.py::test_new[1xgloo]" == started[0]


def test_floors_turn_red_what_hardly_ran(lab):
    lab.write(test_planned=TESTS)

    few = lab.run("test_planned.py", "--min-tests", "100")
    told = lab.run("explain", "results")
    merged = lab.run("merge", "results", "--results", "merged")
    skipped = lab.run("test_planned.py", "--world-sizes", "3", "--max-skip-ratio", "0.5")

    assert (1, 1) == (few.exit_code, skipped.exit_code)
    assert "100" in few.output
    # What is stored ends as the run did, and so do its reports.
    for results, code in ((few.results, 1), (merged.results, 1), (lab.folder / "results", 1)):
        found = json.loads((results / "results.json").read_text())
        assert code == found["exit_code"]
        assert "asks for" in found["reason"] or "allows" in found["reason"]
        assert "❌" in (results / "summary.md").read_text().splitlines()[0]
    assert (1, 1) == (told.exit_code, merged.exit_code)
    assert "the run ended with exit code 1: only" in told.output


@pytest.mark.slow("a plan, two shards, their merge and three more runs")
def test_files_that_skip_themselves_are_in_every_report_and_count_for_the_floors(lab):
    """They have no test that could be skipped: a suite must not vanish with an optional import."""
    lab.write(test_planned=TESTS)
    gone = lab.folder / "gone"
    gone.mkdir()
    gone.joinpath("test_import.py").write_text(
        "import pytest\n\npytest.importorskip('no_such_engine')\n\ndef test_x(): pass\n"
    )
    gone.joinpath("test_machine.py").write_text("import unittest\nraise unittest.SkipTest('no eighth GPU')\n")
    skipped = {
        "gone/test_import.py": "could not import 'no_such_engine': No module named 'no_such_engine'",
        "gone/test_machine.py": "no eighth GPU",
    }

    plan = lab.run("plan", ".", "--shards", "2", "--revision", "abc")
    assert 0 == plan.exit_code, plan.output
    for number in (1, 2):
        ended = lab.run(".", "--plan", "plan.json", "--shard", str(number), "--revision", "abc")
        assert 0 == ended.exit_code, ended.output
        assert skipped == _skipped(ended.run)
        assert 2 == ended.results.joinpath("junit.xml").read_text().count("<skipped ")
        shutil.move(ended.results, lab.folder / f"shard-{number}")
    merged = lab.run("merge", "shard-1", "shard-2", "--plan", "plan.json")
    run = fold(read_events(lab.folder / "merged" / FILE_NAME))
    assert 0 == merged.exit_code, merged.output
    assert skipped == _skipped(run)
    assert {1} == {len(test.attempts) for test in run.tests}

    strict = lab.run(".", "--strict")
    assert 6 == strict.exit_code
    assert "no test of gone ran" in strict.output
    typo = lab.run(".", "--", "-k", "no_such_test")
    assert 5 == typo.exit_code
    assert len(typo.run.tests) > 2, "the results of the run before"
    shutil.rmtree(typo.results)
    alone = lab.run("gone")
    assert 5 == alone.exit_code, "none of their tests was collected"
    assert skipped == _skipped(alone.run)
    assert [3, 2] == [test.test.line for test in alone.run.tests]


def test_planned_tests_of_a_file_that_skips_itself_have_not_vanished(lab):
    lab.write(
        test_kept="def test_kept(): pass",
        test_engine="def test_engine(): pass",
        test_gone="def test_gone(): pass",
    )
    lab.run("plan", ".", "--shards", "1")
    lab.write(test_engine="import pytest\npytest.skip('no engine', allow_module_level=True)", test_gone="")

    ended = lab.run(".", "--plan", "plan.json", "--shard", "1")

    assert ended.exit_code == 0, ended.output
    assert ["test_gone.py::test_gone: planned, but no longer exists"] == [
        note for note in ended.run.notes if "planned" in note
    ]


def _skipped(run):
    return {
        test.test.nodeid: test.final.message for test in run.tests if test.final.outcome is Outcome.SKIPPED
    }
