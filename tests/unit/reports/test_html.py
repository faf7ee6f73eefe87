"""The page as text: size, escaping, what stands there before any script runs. tests/browser opens it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files

import msgspec
import pytest
from sample_runs import SampleRun, mixed_run, rank, stopped_run, write_log

from disttest.model import Collective, Invocation, Outcome, Section, TestResult
from disttest.plugins.html.data import choose_tests, collective_table, headline_of
from disttest.plugins.html.render import render_html
from disttest.plugins.summary.render import render_summary
from disttest.reports.past_runs import past_run
from disttest.reports.write import write_reports


def embedded(page: str, name: str):
    return json.loads(
        re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)[1]
    )


def test_nothing_in_it_needs_a_network(tmp_path):
    page = render_html(mixed_run(tmp_path), tmp_path)

    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page


@pytest.mark.slow("a page of five thousand tests")
def test_five_thousand_tests_with_loud_failures_stay_under_five_megabytes(tmp_path):
    log = write_log(tmp_path, "logs/rank.log", "a line of a log\n" * 5_000)
    sample = SampleRun(slots=64)
    for number in range(5_000):
        bad = number % 10 == 0
        ranks = tuple(
            rank(index, log=log, details="a traceback\n" * 1_000 if bad else "") for index in range(4)
        )
        outcome = Outcome.FAILED if bad else Outcome.PASSED
        sample.test(
            outcome, name=f"test_with_a_rather_long_name_{number}", size=4, message="m" * 200, ranks=ranks
        )

    page = render_html(sample.finish(), tmp_path)

    assert len(page.encode()) < 5_000_000
    assert len(embedded(page, "data")["tests"]) == 5_000
    assert len(embedded(page, "details")) == 500


def test_reasons_of_tests_that_were_not_run_are_a_list_of_their_own():
    page = render_html(stopped_run())

    lists = re.findall(r"<h3>(Skipped|Not run)</h3><ul[^>]*>(.*?)</ul>", page)
    assert [(title, re.sub(r"<[^>]*>", "", items)) for title, items in lists] == [
        ("Skipped", "1 no GPU"),
        ("Not run", "2 not run: stopping"),
    ]


def test_a_section_of_one_line_stands_below_the_message_of_its_failure():
    sample = SampleRun()
    sections = {
        "hints": Section(title="hint: use <world_tmp_path>"),
        "calls": Section(title="calls of its ranks", lines=("all_reduce",)),
    }
    sample.test(Outcome.FAILED, name="test_a", message="rank 1 failed", sections=sections)

    (card,) = re.findall(r'<li class="card failed">.*?</li>', render_html(sample.finish()), re.DOTALL)
    assert "<p>hint: use &lt;world_tmp_path&gt;</p>" in card
    assert "calls of its ranks" not in card


def test_every_test_that_torch_would_have_passed_is_named():
    sample = SampleRun()
    for number in range(200):
        outcome = Outcome.FAILED if number % 2 else Outcome.SKIPPED
        sample.test(outcome, name=f"test_{number}", size=None, torch_outcome=Outcome.PASSED)
    page = render_html(sample.finish())
    _, green, vacuous = re.split(
        "<h3>(?:False greens avoided|Tests that torch passes vacuously here)</h3>", page
    )

    assert [f"test_{number}" for number in range(1, 200, 2)] == re.findall(r"::(test_\d+)<", green)
    assert [f"test_{number}" for number in range(0, 200, 2)] == re.findall(r"::(test_\d+)<", vacuous)


def large_run():
    """Five tests: one failed, one was flaky, the others passed; the last one took longest."""
    sample = SampleRun()
    for number in range(5):
        outcome = Outcome.FAILED if number == 1 else Outcome.PASSED
        attempts = [{"outcome": Outcome.FAILED}] if number == 3 else []
        sample.test(outcome, name=f"test_{number}", seconds=0.1 + number, message="m", attempts=attempts)
    return sample.finish()


def test_a_page_too_large_to_load_keeps_what_went_wrong_and_what_took_long():
    kept = choose_tests(large_run(), most=3)

    assert [test.test.name for test in kept.tests] == ["test_1[2xgloo]", "test_3[2xgloo]", "test_4[2xgloo]"]
    assert choose_tests(large_run(), most=5) == large_run()


def test_a_page_that_lacks_tests_says_so_and_still_counts_all(monkeypatch):
    monkeypatch.setattr(choose_tests, "__defaults__", (2,))
    run = large_run()
    page = render_html(run)
    carried = embedded(page, "data")

    assert "3 tests that went well and quickly are not on this page" in page
    assert [row[0].rpartition("::")[2] for row in carried["tests"]] == ["test_1[2xgloo]", "test_3[2xgloo]"]
    assert {bar[0] for bar in carried["timeline"]["bars"]} == {0, 1}
    assert len(carried["timeline"]["worlds"]) == len(run.worlds)
    assert "1 failed, 1 flaky, 3 passed" in page
    assert "not on this page" not in render_html(SampleRun().finish())


def test_details_are_carried_only_by_tests_that_are_opened(tmp_path):
    page = render_html(mixed_run(tmp_path), tmp_path)
    names = [test[0] for test in embedded(page, "data")["tests"]]
    carried = {names[int(index)].rpartition("::")[2] for index in embedded(page, "details")}

    assert carried == {
        "test_all_reduce[2xgloo]",
        "test_hang[2xgloo]",
        "test_crash[4xgloo]",
        "test_on_broken_gpu[2xgloo]",
        "test_on_broken_gpu[4xgloo]",
        "test_flaky[2xgloo]",
    }


def test_history_is_kept_for_tests_that_were_not_always_green():
    good = SampleRun()
    good.test(name="test_steady")
    good.test(name="test_shaky")
    bad = SampleRun()
    bad.test(name="test_steady")
    bad.test(Outcome.FAILED, name="test_shaky", message="m")
    data = embedded(render_html(good.finish(), history=[past_run(bad.finish())]), "data")

    assert data["history"] == {"1": [data["kinds"].index("failed")]}
    assert data["streaks"] == {}


def test_a_failed_test_has_the_commit_of_its_first_failure():
    sample = SampleRun()
    sample.test(Outcome.FAILED, name="test_shaky", message="m")
    run = sample.finish()
    kinds = ["passed", "failed", "passed", "failed", "skipped", "failed"]
    earlier = [
        replace(past_run(run), kinds={run.tests[0].test.nodeid: kind}, commit=f"{number}" * 40)
        for number, kind in enumerate(kinds)
    ]
    data = embedded(render_html(run, history=earlier), "data")

    assert data["streaks"] == {"0": "red since 3333333333 (3 runs), last passed at 2222222222"}


def test_failures_of_other_branches_are_no_part_of_a_streak():
    sample = SampleRun()
    sample.test(Outcome.FAILED, name="test_shaky", message="m")
    run = sample.finish()
    run = msgspec.structs.replace(run, invocation=Invocation(data={"history": {"branch": "main"}}))
    earlier = [
        replace(past_run(run), kinds={run.tests[0].test.nodeid: kind}, commit=commit * 40, branch=branch)
        for kind, commit, branch in (("passed", "1", "main"), ("failed", "2", "topic"))
    ]
    data = embedded(render_html(run, history=earlier), "data")

    assert data["streaks"] == {"0": "red since this run, last passed at 1111111111"}


@pytest.mark.parametrize("hostile", ["</script>", "<!--<script>", "</script x", "\u2028", "&lt;", "'\"><b>"])
def test_data_can_not_leave_its_element(hostile):
    sample = SampleRun()
    sample.test(Outcome.FAILED, message=hostile, case={"nodeid": hostile, "suite": hostile, "name": hostile})
    page = render_html(sample.finish())

    assert page.count("<script") == 3
    assert page.count("</script") == 3
    assert embedded(page, "data")["tests"][0][5] == " ".join(hostile.split())


def test_a_clock_that_went_backwards_gives_a_page():
    sample = SampleRun()
    sample.test(seconds=1.0)
    sample.test(name="test_before", at_s=5.0, seconds=1.0)
    data = embedded(render_html(sample.finish()), "data")

    assert all(bar[3] >= 0 and bar[4] >= bar[3] for bar in data["timeline"]["bars"])


def called(*calls: tuple[int, str, bool]) -> tuple[Collective, ...]:
    return tuple(
        Collective(group="default", seq=seq, op=op, done=done, at_s=10.0 + seq) for seq, op, done in calls
    )


@pytest.mark.parametrize(
    ("first", "second", "parting"),
    [
        ([(1, "all_reduce", True), (2, "barrier", False)], [(1, "all_reduce", True)], 2),  # one never came
        ([(1, "all_reduce", False)], [(1, "broadcast", False)], 1),  # they called different things
        (
            [(1, "all_reduce", True), (2, "barrier", False)],
            [(1, "all_reduce", True), (2, "barrier", False)],
            2,
        ),
        ([(1, "all_reduce", True)], [(1, "all_reduce", True)], None),
        (
            [(1, "all_reduce", True), (2, "barrier", True)],
            [(2, "barrier", True)],
            None,
        ),  # the recorder forgot
    ],
)
def test_the_collective_at_which_ranks_part(first, second, parting):
    ranks = (rank(0, collectives=called(*first)), rank(1, collectives=called(*second)), rank(2))
    table = collective_table(TestResult(nodeid="x", outcome=Outcome.FAILED, started_at_s=10.0, ranks=ranks))

    assert table["ranks"] == ["rank 0", "rank 1"]
    assert [row["name"] for row in table["rows"] if row["parts"]] == (
        [f"default #{parting}"] if parting else []
    )


def test_ranks_do_not_part_at_a_call_of_a_group_without_them():
    def call(seq, op, *ranks, group="mesh_tp", done=True):
        return Collective(group=group, seq=seq, op=op, done=done, at_s=10.0 + seq, ranks=ranks)

    ranks = (
        rank(0, collectives=(call(1, "broadcast", 0, 1),)),
        rank(1, collectives=(call(1, "broadcast", 0, 1),)),
        rank(
            2, collectives=(call(1, "all_reduce", 2, 3), call(9, "barrier", 2, 3, group="pair", done=False))
        ),
        rank(3, collectives=(call(1, "all_reduce", 2, 3),), hung=True),
    )
    table = collective_table(TestResult(nodeid="x", outcome=Outcome.FAILED, started_at_s=10.0, ranks=ranks))

    assert [row["name"] for row in table["rows"] if row["parts"]] == ["pair #9"]


def test_a_hung_rank_that_called_nothing_has_a_column():
    ranks = (rank(0, collectives=called((1, "barrier", False))), rank(1, None, hung=True))
    table = collective_table(TestResult(nodeid="x", outcome=Outcome.FAILED, started_at_s=10.0, ranks=ranks))

    assert table["ranks"] == ["rank 0", "rank 1"]
    assert table["rows"][0]["cells"][1] is None


def test_the_culprit_has_a_column_though_nobody_asked_it():
    ranks = (rank(0, collectives=called((1, "barrier", False))), rank(1, Outcome.FAILED), rank(2))
    result = TestResult(nodeid="x", outcome=Outcome.FAILED, started_at_s=10.0, ranks=ranks, culprit=1)
    table = collective_table(result)

    assert table["ranks"] == ["rank 0", "rank 1"]
    assert table["rows"][0]["cells"][1] == {"unasked": "failed"}


def test_the_command_can_be_copied(tmp_path):
    run = msgspec.structs.replace(mixed_run(tmp_path), argv=("run", "-k", "a or b"))

    assert "run -k &#39;a or b&#39;</code>" in render_html(run, tmp_path)
    assert "`run -k 'a or b'`" in render_summary(run)


def test_a_card_shows_the_line_that_failed(tmp_path):
    page = render_html(mixed_run(tmp_path), tmp_path)

    assert 1 == page.count('<p class="source"><code>assert x[0] == 3</code></p>')


def test_no_recorder_no_table():
    assert collective_table(TestResult(nodeid="x", outcome=Outcome.FAILED, ranks=(rank(0),))) is None


def test_a_number_of_5000_digits_in_a_failure_costs_no_report(tmp_path):
    sample = SampleRun()
    huge = "9" * 5000
    sample.test(
        Outcome.FAILED,
        message=f'File "a.py", line {huge} in f',
        details=f'a.py:{huge}: in test\n  File "a.py", line {huge}, in f\n',
    )
    write_reports(sample.finish(), tmp_path)

    assert huge[:100] in (tmp_path / "report.html").read_text()


def test_a_log_is_linked_as_a_file_whatever_its_name():
    assert (
        "href: `./${encodeURI(rank.log)}`" in files("disttest.plugins.html").joinpath("ranks.js").read_text()
    )


@pytest.mark.parametrize(
    ("message", "head", "rest"),
    [
        ("rank 1 failed: ValueError: boom", "rank 1 failed: ValueError: boom", ""),
        (
            f"deadlock: no rank can continue: rank 0 {'waits ' * 20}",
            "deadlock: no rank can continue",
            "rank 0 waits",
        ),
        ("x" * 120, f"{'x' * 99}…", f"…{'x' * 21}"),
    ],
)
def test_the_headline_of_a_card_is_one_line(message, head, rest):
    found, more = headline_of(message)

    assert head == found
    assert more.startswith(rest)
    assert len(found) <= 100
