"""The quarantine: its file, what it hides and what not, and entries that should go."""

from __future__ import annotations

import sqlite3
from datetime import date
from pathlib import Path

import msgspec
import pytest
from sample_runs import EPOCH_S, SampleRun

from disttest.errors import UsageError
from disttest.extras.flaky.audit import STABLE_RUNS, find_expired, find_stable, find_unknown
from disttest.extras.flaky.judging import InQuarantine, data_of, hidden, notes_on, quarantine_of
from disttest.extras.flaky.quarantine import Entry, entry_of, find_quarantine, read_quarantine
from disttest.extras.flaky.tables import report_tables
from disttest.extras.history.adding import write_record
from disttest.extras.history.git_facts import CommitFacts
from disttest.extras.history.queries import read_past_runs, read_test
from disttest.extras.history.records import record_of
from disttest.extras.history.shown import describe_past
from disttest.extras.history.store import reading, writing
from disttest.model import Cause, Outcome, TestCase, TestResult
from disttest.plugins.summary.render import render_summary
from disttest.results.fold import RunResult

TODAY = date(2026, 6, 1)
GOOD = """
[[test]]
test = "tests/test_ddp.py::test_a"
owner = "ann"
reason = "races with the logger"
link = "https://example.org/7"
expires = 2026-06-01
"""
DATA = InQuarantine(owner="ann", reason="races", expires="2026-06-01")


def entry(test: str, expires: date = TODAY) -> Entry:
    return Entry(test=test, owner="ann", reason="races", expires=expires)


class TestFile:
    def test_an_entry(self, tmp_path):
        (tmp_path / "flaky.toml").write_text(GOOD)

        (found,) = find_quarantine(None, tmp_path)
        assert (found.owner, found.link, found.expires) == ("ann", "https://example.org/7", TODAY)
        assert find_quarantine(None, tmp_path / "elsewhere") == ()

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (
                "expires = 2026-06-01\n",
                "",
                r"test 1 \(tests/test_ddp.py::test_a\): .*missing required field `expires`",
            ),
            ("2026-06-01", '"soon"', r"test 1 .*Invalid RFC3339"),
            ("2026-06-01", "2026-06-01T10:00:00", r"test 1 .*expires"),
            ("2026-06-01", "2026-13-01", "is not valid TOML"),
            ('owner = "ann"', 'owner = " "', "owner is empty"),
            ('owner = "ann"', "owner = 7", "Expected `str`, got `int`"),
            ("link", "url", "unknown field `url`"),
            ("[[test]]", "[[tests]]", r"there is no setting tests; each test is a table \[\[test\]\]"),
            ("[[test]]", "[test]", r"test is not a list of tables"),
            (GOOD, GOOD + GOOD, "lists tests/test_ddp.py::test_a twice"),
            (GOOD, "test = [1]", "test 1: Expected `object`"),
            (GOOD, "\udcff", "is not valid TOML"),
        ],
    )
    def test_a_bad_file_is_refused_with_its_entry(self, tmp_path, old, new, message):
        assert old in GOOD
        file = tmp_path / "q.toml"
        file.write_text(GOOD.replace(old, new), errors="surrogateescape")
        with pytest.raises(UsageError, match=message):
            read_quarantine(file)

    def test_a_file_that_was_named_has_to_be_there(self, tmp_path):
        with pytest.raises(UsageError, match=r"gone\.toml cannot be read: No such file"):
            find_quarantine(tmp_path / "gone.toml", tmp_path)

    @pytest.mark.parametrize(
        ("name", "nodeid", "matches"),
        [
            ("t.py::test_a", "t.py::test_a", True),
            ("t.py::test_a", "t.py::test_a[2xgloo]", True),
            ("t.py::test_a", "t.py::test_a_b", False),
            ("t.py::test_a[2xgloo]", "t.py::test_a[2xgloo]", True),
            ("t.py::test_a[2xgloo]", "t.py::test_a[4xgloo]", False),
            ("t.py", "t.py::test_a", False),
        ],
    )
    def test_which_tests_an_entry_is_about(self, name, nodeid, matches):
        assert entry(name).matches(nodeid) is matches

    def test_the_entry_that_says_more_counts(self):
        wide, exact = entry("t.py::test_a"), entry("t.py::test_a[2xgloo]")

        assert entry_of([exact, wide], "t.py::test_a[2xgloo]") is exact
        assert entry_of([exact, wide], "t.py::test_a[4xgloo]") is wide
        assert entry_of([exact, wide], "t.py::test_b") is None

    def test_the_last_day_still_counts(self):
        assert not entry("t.py::test_a").has_expired(TODAY)
        assert entry("t.py::test_a").has_expired(date(2026, 6, 2))


def result(outcome: Outcome, cause: Cause | None = None) -> TestResult:
    return TestResult(nodeid="t.py::test_a", outcome=outcome, cause=cause, message="boom", details="trace")


class TestHiding:
    @pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ERROR])
    def test_a_failure_does_not_count_and_keeps_its_evidence(self, outcome):
        found = hidden(result(outcome, Cause.TEST), DATA)

        assert found.outcome is Outcome.XFAILED
        assert found.message == "in quarantine until 2026-06-01 (ann: races): boom"
        assert found.details == "trace"
        assert found.notes

    @pytest.mark.parametrize("cause", [Cause.INFRASTRUCTURE, Cause.PLUGIN])
    def test_a_broken_machine_and_a_broken_plugin_count(self, cause):
        assert hidden(result(Outcome.ERROR, cause), DATA) == result(Outcome.ERROR, cause)

    @pytest.mark.parametrize("outcome", [Outcome.PASSED, Outcome.SKIPPED, Outcome.XFAILED])
    def test_nothing_else_changes(self, outcome):
        assert hidden(result(outcome), DATA) == result(outcome)

    def test_what_has_expired_counts_and_is_said_before_the_first_test(self):
        expired = data_of(entry("t.py::test_a"), expired=True)
        case = TestCase(
            nodeid="t.py::test_a", slug="", classname="", name="", file="t.py", line=1, suite="",
            data={"flaky": msgspec.to_builtins(expired)},
        )  # fmt: skip

        assert hidden(result(Outcome.FAILED, Cause.TEST), expired).outcome is Outcome.FAILED
        (note,) = notes_on([case])
        assert note.startswith("the quarantine of t.py::test_a ended on 2026-06-01")

    def test_data_of_a_later_version_is_no_entry(self):
        case = TestCase(
            nodeid="a",
            slug="",
            classname="",
            name="",
            file="",
            line=1,
            suite="",
            data={"flaky": {"owner": 7}},
        )
        assert quarantine_of(case) is None


def run_of(outcomes: dict[str, Outcome], number: int = 0) -> RunResult:
    sample = SampleRun()
    data = {"flaky": msgspec.to_builtins(DATA)}
    for name, outcome in outcomes.items():
        message = f"{DATA.words}: boom" if outcome is Outcome.XFAILED else ""
        sample.test(outcome, name=name, case={"data": data}, message=message)
    run = sample.finish()
    return msgspec.structs.replace(run, run_id=f"run-{number}", started_at_s=run.started_at_s + number)


class TestReports:
    def test_the_table_names_each_test_and_those_that_failed_first(self):
        run = run_of({"test_a": Outcome.PASSED, "test_b": Outcome.XFAILED, "test_c": Outcome.SKIPPED})
        (table,) = report_tables(run)

        assert table.title == "3 tests; the failures of 1 do not fail the run"
        assert [line[-1] for line in table.lines()][:3] == ["✗", "✓", "-"]
        assert table.lines()[0] == " tests/test_ddp.py::test_b[2xgloo]: ann, until 2026-06-01, races  ✗"
        assert "Quarantine: 3 tests; the failures of 1 do not fail the run" in render_summary(run)

    def test_a_run_without_any_has_no_table(self):
        assert report_tables(SampleRun().finish()) == ()


def stored(file: Path, *runs: RunResult) -> Path:
    with writing(file) as connection:
        for run in runs:
            write_record(connection, record_of(run, CommitFacts(), now_s=EPOCH_S + 1e6))
    return file


class TestHistoryOfIt:
    def test_a_hidden_failure_is_a_failure_in_the_history(self, tmp_path):
        file = stored(
            tmp_path / "h", run_of({"test_a": Outcome.XFAILED}), run_of({"test_a": Outcome.PASSED}, 1)
        )
        with reading(file) as connection:
            past = read_test(connection, "tests/test_ddp.py::test_a[2xgloo]")

        assert [(each.kind, each.failed) for each in past] == [("quarantined", 1), ("passed", 0)]
        assert describe_past(past).startswith("failed in 1 of 2 runs")
        assert [*read_past_runs(file)[0].kinds.values()] == ["failed"]


class TestAudit:
    def test_expired(self):
        entries = [entry("t.py::test_a"), entry("t.py::test_b", date(2026, 5, 31))]

        assert [found.test for found, _ in find_expired(entries, TODAY)] == ["t.py::test_b"]

    def test_unknown(self):
        entries = [entry("t.py::test_a"), entry("t.py::test_b[8xnccl]"), entry("t.py::test_gone")]
        found = find_unknown(entries, ["t.py::test_a[2xgloo]", "t.py::test_b[2xgloo]"])

        assert [each.test for each, _ in found] == ["t.py::test_gone"]

    def test_tests_of_what_skipped_itself_are_not_unknown(self):
        names = ("a.py::test_x[1]", "gone/b.py::TestB::test_y", "c.py::TestC::test_z", "a.pyx::test_gone")
        found = find_unknown([*map(entry, names)], [], ["a.py", "gone", "c.py::TestC"])

        assert [each.test for each, _ in found] == ["a.pyx::test_gone"]

    @pytest.mark.parametrize(
        ("outcomes", "is_stable"),
        [
            ([Outcome.PASSED] * STABLE_RUNS, True),
            ([Outcome.XFAILED] + [Outcome.PASSED] * STABLE_RUNS, True),
            ([Outcome.PASSED] * (STABLE_RUNS - 1), False),
            ([Outcome.PASSED] * (STABLE_RUNS - 1) + [Outcome.SKIPPED], False),
            ([Outcome.PASSED] * STABLE_RUNS + [Outcome.XFAILED], False),
            ([Outcome.PASSED] * STABLE_RUNS + [Outcome.SKIPPED], True),
        ],
    )
    def test_stable(self, tmp_path, outcomes, is_stable):
        file = stored(
            tmp_path / "h", *(run_of({"test_a": each}, number) for number, each in enumerate(outcomes))
        )
        entries = [entry("tests/test_ddp.py::test_a"), entry("tests/test_ddp.py::test_unheard_of")]
        with reading(file) as connection:
            found = [each.test for each, _ in find_stable(entries, connection)]

        assert found == ["tests/test_ddp.py::test_a"] * is_stable

    def test_one_world_that_fails_keeps_the_entry(self, tmp_path):
        file = stored(
            tmp_path / "h",
            *(run_of({"test_a": Outcome.PASSED}, number) for number in range(STABLE_RUNS)),
        )
        with sqlite3.connect(file) as connection:
            connection.execute(
                "INSERT INTO test VALUES (99, 'tests/test_ddp.py::test_a[4xgloo]', '', '', 4, 'gloo')"
            )
            connection.execute("INSERT INTO verdict VALUES (1, 99, 1, 1, 1, 0.1, NULL)")
        connection.close()
        with reading(file) as opened:
            assert [*find_stable([entry("tests/test_ddp.py::test_a")], opened)] == []
