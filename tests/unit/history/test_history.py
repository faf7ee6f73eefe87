"""The file of all runs: what goes in, what comes out, and files that cannot be used."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from sample_runs import EPOCH_S, SampleRun
from shard_runs import START_S, ShardRun, cases

from disttest.errors import UsageError
from disttest.extras.history.adding import add_results
from disttest.extras.history.command import history
from disttest.extras.history.git_facts import CommitFacts, facts_of_ci, project_of
from disttest.extras.history.limits import MOST_RETRIES
from disttest.extras.history.queries import (
    find_tests,
    read_past_runs,
    read_points,
    read_test,
    read_timings,
)
from disttest.extras.history.rates import wilson
from disttest.extras.history.shown import report_tables, show_test
from disttest.extras.history.store import HistoryLocked, reading, writing
from disttest.extras.shards.merging import merge
from disttest.model import Invocation, Outcome, WorldShape
from disttest.planning.timings import Timings
from disttest.reports.past_runs import words_of_streak
from disttest.reports.write import write_reports
from disttest.results.directory import claim
from disttest.results.durations import read_timings as read_timing_files
from disttest.results.fold import RunResult

NOW_S = EPOCH_S + 1e6
UNKNOWN = CommitFacts()


def run_of(
    number: int, outcomes: dict[str, Outcome], *, commit: str = "", branch: str = "main", project: str = ""
) -> RunResult:
    facts = msgspec.to_builtins(CommitFacts(commit=commit, branch=branch, project=project))
    sample = SampleRun(invocation=Invocation(data={"history": facts}))
    for name, outcome in outcomes.items():
        sample.test(outcome, name=name, message="boom" if outcome.is_bad else "")
    run = sample.finish()
    moved = {"started_at_s": run.started_at_s + 60 * number, "ended_at_s": run.ended_at_s + 60 * number}
    return msgspec.structs.replace(run, run_id=f"run-{number}", **moved)


def saved(folder: Path, run: RunResult) -> Path:
    folder.mkdir(parents=True)
    write_reports(run, folder, ("json",))
    return folder


def added(file: Path, *runs: RunResult) -> Path:
    for run in runs:
        folder = saved(file.parent / f"{run.run_id}-of-{file.stem}", run)
        add_results(file, [folder], UNKNOWN, now_s=NOW_S)
    return file


def nodeid(name: str) -> str:
    return f"tests/test_ddp.py::{name}[2xgloo]"


P, F = Outcome.PASSED, Outcome.FAILED


class TestAdding:
    def test_a_run_counts_once_however_often_it_is_added(self, tmp_path):
        results = saved(tmp_path / "results", run_of(1, {"test_a": P, "test_b": F}))
        file = tmp_path / "h.sqlite"
        first = add_results(file, [results], UNKNOWN, now_s=NOW_S)
        again = add_results(file, [tmp_path], UNKNOWN, now_s=NOW_S)

        assert (first.runs, first.verdicts, first.known) == (1, 2, 0)
        assert (again.runs, again.verdicts, again.known) == (0, 0, 1)

    def test_a_run_that_has_not_ended_is_added_when_it_has(self, tmp_path):
        results = tmp_path / "results"
        running = claim(results)
        half = run_of(1, {"test_a": F})
        write_reports(half, results, ("json",))
        file = tmp_path / "h.sqlite"
        early = add_results(file, [results], UNKNOWN, now_s=NOW_S)
        write_reports(run_of(1, {"test_a": P}), results, ("json",))
        running.release()
        late = add_results(file, [results], UNKNOWN, now_s=NOW_S)

        assert (early.runs, late.runs, late.known) == (0, 1, 0)
        (warning,) = early.warnings
        assert f"{results} is in use by another run" in warning
        with reading(file) as connection:
            assert [each.kind for each in read_test(connection, nodeid("test_a"))] == ["passed"]

    @pytest.mark.parametrize("merged_first", [True, False])
    def test_shards_and_their_merged_run_are_one_run(self, tmp_path, merged_first):
        a, b = cases("a", "b")
        for number, test in enumerate((a, b), 1):
            shard = ShardRun(tmp_path / f"s{number}", number)
            shard.run(test)
            shard.finish()
        merged = tmp_path / "merged"
        merged.mkdir()
        write_reports(merge([tmp_path / "s1", tmp_path / "s2"], merged), merged, ("json",))
        again = tmp_path / "again"
        again.mkdir()
        write_reports(merge([merged], again), again, ("json",))
        file, order = tmp_path / "h.sqlite", [tmp_path / "s1", merged, tmp_path / "s2", again]
        add_results(file, [merged, *order] if merged_first else order, UNKNOWN, now_s=NOW_S)

        points = read_points(file)
        assert [point.tests for point in points] == [2]
        with reading(file) as connection:
            assert len(read_test(connection, a.nodeid)) == 1

    @pytest.mark.parametrize("later_first", [True, False])
    @pytest.mark.parametrize("run_ids", [{}, {"run_id": ""}], ids=["with ids", "without ids"])
    def test_a_merge_with_reruns_replaces_the_merge_before(self, tmp_path, later_first, run_ids):
        (a,) = cases("a")
        shards = tmp_path / "shards"
        for number, outcome in enumerate((F, P)):
            shard = ShardRun(shards / f"s{number}", 1, at_s=START_S + 1000 * number, **run_ids)
            shard.run(a, outcome)
            shard.finish(outcome.is_bad)
            into = tmp_path / f"merged-{number}"
            into.mkdir()
            write_reports(merge([shards], into, reruns=True), into, ("json",))
        file, order = tmp_path / "h.sqlite", [tmp_path / "merged-0", tmp_path / "merged-1"]
        add_results(file, order[::-1] if later_first else order, UNKNOWN, now_s=NOW_S)

        # Only their ids show that two runs have the same shards.
        kinds = ["flaky"] if not run_ids else ["failed", "flaky"]
        with reading(file) as connection:
            assert kinds == sorted(each.kind for each in read_test(connection, a.nodeid))

    def test_histories_of_branches_are_merged(self, tmp_path):
        main = added(
            tmp_path / "main.sqlite", run_of(1, {"test_a": P}), run_of(3, {"test_a": F}, commit="c3")
        )
        other = added(tmp_path / "other.sqlite", run_of(2, {"test_a": P, "test_b": P}, branch="topic"))
        joined = tmp_path / "joined.sqlite"
        outcome = add_results(joined, [main, other, main], UNKNOWN, now_s=NOW_S)

        assert (outcome.runs, outcome.known) == (3, 2)
        with reading(joined) as connection:
            past = read_test(connection, nodeid("test_a"))
            assert [(each.kind, each.branch, each.commit) for each in past] == [
                ("passed", "main", ""),
                ("passed", "topic", ""),
                ("failed", "main", "c3"),
            ]
            assert past[-1].message == "boom"
            assert len(read_test(connection, nodeid("test_a"), branch="main")) == 2

    def test_a_history_in_a_folder_that_is_added_to_itself(self, tmp_path):
        file = added(tmp_path / "h.sqlite", run_of(1, {"test_a": P}))

        assert add_results(file, [tmp_path], UNKNOWN, now_s=NOW_S).known == 1

    def test_two_writers_take_turns(self, tmp_path):
        file = tmp_path / "h.sqlite"
        folders = [saved(tmp_path / str(number), run_of(number, {"test_a": P})) for number in range(8)]
        ready = threading.Barrier(2)

        def add(mine: list[Path]) -> None:
            ready.wait()
            for folder in mine:
                add_results(file, [folder], UNKNOWN, now_s=NOW_S)

        writers = [threading.Thread(target=add, args=(folders[start::2],)) for start in (0, 1)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()

        assert len(read_points(file)) == 8

    def test_names_that_no_file_can_hold_and_the_last_attempt(self, tmp_path):
        sample = SampleRun()
        sample.test(P, name="test_\udcff", attempts=[{"outcome": F, "message": "first"}])
        file = added(tmp_path / "h.sqlite", sample.finish())

        with reading(file) as connection:
            (name,) = find_tests(connection, "test_")
            (verdict,) = read_test(connection, name)
        assert (verdict.kind, verdict.attempts, verdict.failed, verdict.message) == ("flaky", 2, 1, "first")


JUNIT = """<testsuites><testsuite name="pytest" timestamp="2026-05-28T20:26:40">
<testcase classname="tests.test_a" name="a" time="2.5"/>
<testcase classname="tests.test_a" name="b" time="7"><failure message="no"/></testcase>
<testcase classname="tests.test_a" name="c" time="1"><flakyFailure message="once"/></testcase>
<testcase classname="tests.test_a" name="d" time="0"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>
"""
CTRF = (
    '{"results": {"tool": {"name": "jest"}, "tests": [{"name": "adds", "status": "passed", "duration": 1500,'
    '"suite": ["math"], "flaky": true}, {"name": "divides", "status": "failed", "duration": 1, "message": "by 0"}]}}'
)


class TestOtherTools:
    def test_junit(self, tmp_path):
        report, file = tmp_path / "junit.xml", tmp_path / "h.sqlite"
        report.write_text(JUNIT)
        given = CommitFacts(commit="abc", branch="main")
        assert add_results(file, [report, report], given, now_s=NOW_S).known == 1

        with reading(file) as connection:
            kinds = {name: read_test(connection, name)[0] for name in find_tests(connection, "")}
        assert {name: each.kind for name, each in kinds.items()} == {
            "tests.test_a::a": "passed",
            "tests.test_a::b": "failed",
            "tests.test_a::c": "flaky",
            "tests.test_a::d": "skipped",
        }
        assert (kinds["tests.test_a::b"].message, kinds["tests.test_a::b"].commit) == ("no", "abc")

    @pytest.mark.parametrize(
        ("cases", "kind"),
        [
            ("<testcase {0}><failure message='no'/></testcase> <testcase {0}/>", "failed"),
            ("<testcase {0}/> <testcase {0}><error message='no'/></testcase>", "failed"),
            ("<testcase {0}><flakyFailure/></testcase> <testcase {0}/>", "flaky"),
            ("<testcase {0}/> <testcase {0}><skipped/></testcase>", "passed"),
            ("<testcase {0}><failure message='no'/><skipped message='later'/></testcase>", "failed"),
            ("<testcase {0}><skipped message='later'/><failure message='no'/></testcase>", "failed"),
            ("<testcase {0} status='notrun' result='suppressed'/>", "skipped"),
            ("<testcase {0} status='run' result='suppressed'/>", "skipped"),
            ("<testcase {0} status='disabled'/>", "skipped"),
            ("<testcase {0} status='run' result='completed'><failure message='no'/></testcase>", "failed"),
            ("<testcase {0} status='run' result='completed'/>", "passed"),
        ],
    )
    def test_the_worst_outcome_of_a_name_counts(self, tmp_path, cases, kind):
        report, file = tmp_path / "junit.xml", tmp_path / "h.sqlite"
        named = cases.format("classname='G' name='a' time='1'")
        report.write_text(f"<testsuites>{named}</testsuites>")
        add_results(file, [report], UNKNOWN, now_s=NOW_S)

        with reading(file) as connection:
            (each,) = read_test(connection, "G::a")
        assert (kind, kind == "failed") == (each.kind, each.message == "no")
        assert [kind != "failed"] == [point.green for point in read_points(file)]

    def test_a_number_of_retries_that_no_tool_counts(self, tmp_path):
        report, file = tmp_path / "ctrf.json", tmp_path / "h.sqlite"
        report.write_text(CTRF.replace('"flaky": true', f'"retries": {10**10}'))
        add_results(file, [report], UNKNOWN, now_s=NOW_S)

        with reading(file) as connection:
            (adds,) = read_test(connection, "math::adds")
        assert (adds.kind, adds.failed) == ("flaky", MOST_RETRIES)

    def test_ctrf_in_a_folder_of_artifacts(self, tmp_path):
        (tmp_path / "artifacts" / "js").mkdir(parents=True)
        (tmp_path / "artifacts" / "js" / "ctrf.json").write_text(CTRF)
        (tmp_path / "artifacts" / "package.json").write_text('{"name": "no report"}')
        file = tmp_path / "h.sqlite"
        add_results(file, [tmp_path / "artifacts"], UNKNOWN, now_s=NOW_S)

        with reading(file) as connection:
            (adds,) = read_test(connection, "math::adds")
            (divides,) = read_test(connection, "divides")
        assert (adds.kind, adds.duration_s) == ("flaky", 1.5)
        assert (divides.kind, divides.message) == ("failed", "by 0")

    @pytest.mark.parametrize(
        "text", ["", "{}", "[1", "<testsuites/>", "text", '{"results": {"tests": [{"name": 1}]}}']
    )
    def test_what_is_no_report_is_refused_by_name(self, tmp_path, text):
        report = tmp_path / "report.xml"
        report.write_text(text)
        with pytest.raises(UsageError, match=r"report\.xml (is not a report of a known format|has no test)"):
            add_results(tmp_path / "h.sqlite", [report], UNKNOWN, now_s=NOW_S)

        assert not (tmp_path / "h.sqlite").exists()

    def test_a_cut_junit_file_gives_its_first_cases_and_a_warning(self, tmp_path):
        report = tmp_path / "junit.xml"
        report.write_text(JUNIT[: JUNIT.index("<flaky")])
        outcome = add_results(tmp_path / "h.sqlite", [report], UNKNOWN, now_s=NOW_S)

        assert outcome.verdicts == 2
        assert "the rest is skipped, not XML" in outcome.warnings[0]


class TestReading:
    def test_timings_are_those_of_the_results_themselves(self, tmp_path):
        a, b = cases("a", "b")
        run = ShardRun(tmp_path / "results")
        run.run(a, seconds=3)
        run.run(b, Outcome.FAILED, seconds=100)
        run.finish()
        file = tmp_path / "h.sqlite"
        add_results(file, [tmp_path / "results"], UNKNOWN, now_s=NOW_S)
        timings, warnings = read_timing_files([file], now_s=START_S + 1e6, hardware="H100")

        assert warnings == ()
        assert timings.expect(a) == 3
        assert timings.failed_among([a, b]) == {b.nodeid}
        assert timings.start_s(WorldShape(size=2, backend="gloo", device="cuda")) == 0.5

    def test_a_test_that_ran_long_ago_has_timings(self, tmp_path, monkeypatch):
        monkeypatch.setattr("disttest.extras.history.queries.TIMED_RUNS", 1)
        file = added(tmp_path / "h.sqlite", run_of(1, {"test_old": P}), run_of(2, {"test_new": P}))
        samples = [each for each in read_timings(file) if not hasattr(each, "shape")]

        assert {each.test for each in samples} == {nodeid("test_old"), nodeid("test_new")}
        assert Timings(samples).known

    def test_past_runs_are_the_last_ones_without_the_run_itself(self, tmp_path):
        file = added(tmp_path / "h.sqlite", *(run_of(number, {"test_a": P}) for number in (3, 1, 2, 4)))

        found = read_past_runs(file, most=2, without="run-4")
        assert [run.point.run_id for run in found] == ["run-2", "run-3"]
        assert found[0].kinds == {nodeid("test_a"): "passed"}

    def test_the_report_of_a_run_shows_where_failures_began(self, tmp_path):
        outcomes = [P, F, P, F, F]
        file = added(
            tmp_path / "h.sqlite",
            *(
                run_of(number, {"test_a": out}, commit=f"{number}" * 40)
                for number, out in enumerate(outcomes)
            ),
            run_of(5, {"test_a": P}, commit="5" * 40, branch="topic"),
        )
        run = run_of(6, {"test_a": F, "test_b": P})
        data = {"history": msgspec.to_builtins(CommitFacts(file=str(file), branch="main"))}
        run = msgspec.structs.replace(run, invocation=Invocation(data=data))
        (table,) = report_tables(run)

        assert table.lines() == [
            f" {nodeid('test_a')}: red since 3333333333 (3 runs), last passed at 2222222222  ▁█▁██▁",
            "▁ passed, ▄ flaky, █ failed, ▓ broken machine, · not run",
        ]

    def test_a_run_without_failures_or_without_a_file_has_no_table(self, tmp_path):
        data = {"history": {"file": str(tmp_path / "none.sqlite")}}
        run = msgspec.structs.replace(run_of(6, {"test_a": F}), invocation=Invocation(data=data))
        assert report_tables(run) == ()

        data = {"history": {"file": str(added(tmp_path / "h.sqlite", run_of(1, {"test_a": P})))}}
        run = msgspec.structs.replace(run_of(6, {"test_a": P}), invocation=Invocation(data=data))
        assert report_tables(run) == ()

    def test_shown(self, tmp_path):
        file = added(
            tmp_path / "h.sqlite",
            *(
                run_of(number, {"test_a": out}, commit=f"{number}" * 40)
                for number, out in enumerate([P, P, F, F])
            ),
        )
        with reading(file) as connection:
            lines = [*show_test(connection, nodeid("test_a"), branch="", last=3)]

        assert lines[:5] == [
            nodeid("test_a"),
            "  ▁██  failed in 2 of 4 runs: 50.0 % (15.0 to 85.0 %)",
            "  red since 2222222222 (2 runs), last passed at 1111111111",
            "  2 times: boom",
            "",
        ]
        assert lines[5].split() == [
            "2026-05-28",
            "20:29",
            "3333333333",
            "main",
            "failed",
            "500",
            "ms",
            "boom",
        ]
        assert len(lines) == 8

    @pytest.mark.parametrize(
        ("kinds", "words"),
        [
            ("", ""),
            ("s", ""),
            ("p", "red since this run, last passed at 0"),
            ("ppf", "red since 2 (2 runs), last passed at 1"),
            ("fp", "red since this run, last passed at 1"),
            ("pfsi", "red since 1 (3 runs), last passed at 0"),
            ("ff", "red since 0 (3 runs), never passed in 2 earlier runs"),
            ("lf", "red since 1 (2 runs), last passed at 0"),
        ],
    )
    def test_words_of_a_streak(self, kinds, words):
        full = {"p": "passed", "f": "failed", "s": "skipped", "i": "infrastructure", "l": "flaky"}
        past = [(full[kind], str(number)) for number, kind in enumerate(kinds)]

        assert words_of_streak(past, is_red=True) == words
        assert words_of_streak(past, is_red=False) == ""

    @pytest.mark.parametrize(
        ("failed", "ran", "low", "high"),
        # R: binom::binom.confint(failed, ran, methods = "wilson")
        [(0, 10, 0.0, 0.2775328), (3, 20, 0.0523685, 0.3604189), (10, 10, 0.7224672, 1.0), (0, 0, 0.0, 1.0)],
    )
    def test_wilson(self, failed, ran, low, high):
        assert wilson(failed, ran) == pytest.approx((low, high), abs=1e-5)


def test_a_failure_in_quarantine_is_no_run_that_passed(tmp_path):
    sample = SampleRun()
    sample.test(Outcome.XFAILED, name="test_a", message="in quarantine until 2026-06-01 (ann: races): boom")
    (past,) = read_past_runs(added(tmp_path / "h.sqlite", sample.finish()))
    streak = words_of_streak([(past.kinds[nodeid("test_a")], "1a2b3c")], is_red=True)
    assert streak == "red since 1a2b3c (2 runs), never passed in 1 earlier runs"


class TestClocks:
    @pytest.mark.parametrize("started_at_s", [12.0, NOW_S + 1e7])
    def test_a_run_whose_clock_was_wrong_counts_as_one_of_now(self, tmp_path, started_at_s):
        run = msgspec.structs.replace(run_of(1, {"test_a": P}), started_at_s=started_at_s)
        file = tmp_path / "h.sqlite"
        outcome = add_results(file, [saved(tmp_path / "r", run)], UNKNOWN, now_s=NOW_S)

        (past,) = read_past_runs(file)
        assert past.started_at_s == NOW_S
        assert "its clock said" in outcome.warnings[0]

    def test_a_duration_below_zero_teaches_nothing(self, tmp_path):
        sample = SampleRun()
        sample.test(P, name="test_a", seconds=-3600.0)
        file = added(tmp_path / "h.sqlite", sample.finish())

        with reading(file) as connection:
            assert read_test(connection, nodeid("test_a"))[0].duration_s is None
        (sample,) = [each for each in read_timings(file) if not hasattr(each, "shape")]
        assert not Timings([sample]).known


class TestBadFiles:
    def test_locked(self, tmp_path):
        file = added(tmp_path / "h.sqlite", run_of(1, {"test_a": P}))
        with writing(file):
            with (
                pytest.raises(
                    HistoryLocked, match=r"is locked: another process has been writing it for 0\.01 s"
                ),
                writing(file, lock_s=0.01),
            ):
                pass
            assert len(read_points(file)) == 1, "readers see the state before"

    def test_a_writer_that_fails_leaves_the_file_as_it_was(self, tmp_path):
        file = added(tmp_path / "h.sqlite", run_of(1, {"test_a": P}))
        before = file.read_bytes()
        with pytest.raises(RuntimeError), writing(file) as connection:
            connection.execute("DELETE FROM verdict")
            raise RuntimeError

        assert file.read_bytes() == before

    @pytest.mark.parametrize("kept", [1, 100, 1024, 5000, 16384])
    def test_cut(self, tmp_path, kept):
        file = added(tmp_path / "h.sqlite", run_of(1, {"test_a": P}))
        file.write_bytes(file.read_bytes()[:kept])
        for use in (read_points, lambda path: added(path, run_of(2, {"test_a": P}))):
            with pytest.raises(UsageError, match=r"h\.sqlite (is damaged|is not a history)"):
                use(file)

    def test_of_a_newer_version(self, tmp_path):
        file = added(tmp_path / "h.sqlite", run_of(1, {"test_a": P}))
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA user_version = 2")
        connection.close()
        with pytest.raises(
            UsageError, match=r"is of version 2, and this disttest reads up to 1; upgrade disttest"
        ):
            read_points(file)

    def test_of_another_program_or_none_at_all(self, tmp_path):
        other = tmp_path / "places.sqlite"
        with sqlite3.connect(other) as connection:
            connection.execute("CREATE TABLE places (id)")
        connection.close()
        text = tmp_path / "notes.txt"
        text.write_text("a text that is long enough")
        for file, message in (
            (other, "of another program"),
            (text, "is not a history"),
            (tmp_path, "is not a file"),
        ):
            with pytest.raises(UsageError, match=message):
                added(file, run_of(1, {"test_a": P}))
        assert text.read_text() == "a text that is long enough"
        with pytest.raises(UsageError, match="no history"):
            read_points(tmp_path / "none")

    def test_of_another_project(self, tmp_path):
        file = added(tmp_path / "h.sqlite", run_of(1, {"test_a": P}, project="github.com/org/one"))
        added(file, run_of(2, {"test_a": P}))
        with pytest.raises(
            UsageError, match=r"is of project github.com/org/two, and history .* of github.com/org/one"
        ):
            added(file, run_of(3, {"test_a": P}, project="github.com/org/two"))
        given = CommitFacts(project="github.com/org/one")
        add_results(file, [file.parent / "run-3-of-h"], given, now_s=NOW_S)

        assert len(read_points(file)) == 3

    def test_a_bad_timing_file_is_a_warning(self, tmp_path):
        file = added(tmp_path / "h.sqlite", run_of(1, {"test_a": P}))
        file.write_bytes(file.read_bytes()[:5000])
        timings, (warning,) = read_timing_files([file], now_s=NOW_S)

        assert not timings.known
        assert "is damaged" in warning

    def test_a_folder_that_is_not_there(self, tmp_path):
        with pytest.raises(UsageError, match="cannot be used: unable to open database file"):
            writing(tmp_path / "no" / "h.sqlite").__enter__()


class TestFacts:
    def test_of_github(self):
        variables = {
            "GITHUB_SHA": "abc",
            "GITHUB_HEAD_REF": "topic",
            "GITHUB_REF_NAME": "7/merge",
            "GITHUB_REPOSITORY": "Org/Project",
        }
        assert facts_of_ci(variables) == CommitFacts(
            commit="abc", branch="topic", project="github.com/org/project"
        )
        assert facts_of_ci({}) is None

    @pytest.mark.parametrize(
        "url",
        [
            "https://github.com/org/project.git",
            "git@github.com:org/project.git",
            "ssh://git@github.com:22/org/project",
            "https://user:pa@ss@GitHub.com/org/project/",
        ],
    )
    def test_a_project_has_one_name_without_secrets(self, url):
        assert project_of(url) == "github.com/org/project"


class TestCommand:
    def test_add_and_show(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        saved(tmp_path / "results", run_of(1, {"test_a": F, "test_b": P}))
        run = CliRunner().invoke
        ended = run(history, ["add", "results"])
        assert ended.output == "disttest: 1 run with 2 verdicts added to disttest-history.sqlite\n"

        ended = run(history, ["show"])
        assert ended.output.splitlines()[0] == (
            "1 run of 2 tests; the last 1: 2026-05-28 20:27 to 2026-05-28 20:27 (UTC)"
        )
        assert ended.output.splitlines()[2:] == [f"  █  {nodeid('test_a')}"]
        assert run(history, ["show", "test_b"]).output.splitlines()[0] == nodeid("test_b")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["add"], "nothing to add"),
            (["add", "gone"], "no results gone"),
            (["add", "."], r"no results in \. or below it"),
            (["show"], "no history disttest-history.sqlite; make it with"),
            (["show", "a", "b"], "these are 2 words"),
        ],
    )
    def test_refusals(self, tmp_path, monkeypatch, words, message):
        monkeypatch.chdir(tmp_path)
        ended = CliRunner().invoke(history, words)

        assert isinstance(ended.exception, UsageError)
        with pytest.raises(UsageError, match=message):
            raise ended.exception
