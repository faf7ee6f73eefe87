"""The step summary: what it says, that it fits, and that nothing a test prints changes its shape."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from sample_runs import SampleRun, mixed_run, rank, stopped_run, write_log

from disttest.model import Cause, Outcome
from disttest.plugins.html.render import render_html
from disttest.plugins.summary.render import STEPS, render_summary


def rendered(markdown: str) -> str:
    """As GitHub would: HTML passes, tables are tables."""
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)


def test_golden(golden, tmp_path):
    golden("summary.md", render_summary(mixed_run(tmp_path), tmp_path))


def test_golden_green(golden):
    sample = SampleRun()
    sample.test()
    golden("summary-green.md", render_summary(sample.finish()))


def test_tests_that_were_not_run_have_a_column_of_their_own():
    run = stopped_run()

    assert "| passed | failed | skipped | not run | time |" in render_summary(run)
    titles = re.findall(r'<th scope="col" class="n">([^<]*)</th>', render_html(run))
    assert titles[:4] == ["passed", "failed", "skipped", "not run"]


def test_reasons_of_tests_that_were_not_run_are_a_list_of_their_own():
    text = render_summary(stopped_run())

    skipped, not_run = (
        re.search(rf"<summary>{title}: ([^<]*)</summary>(.*?)</details>", text, re.DOTALL)
        for title in ("Skipped", "Not run")
    )
    assert (skipped[1], not_run[1]) == ("1 test, by reason", "2 tests, by reason")
    assert re.findall(r"^\| [\d,]+ \| .*", skipped[2], re.MULTILINE) == ["| 1 | no GPU |"]
    assert re.findall(r"^\| [\d,]+ \| .*", not_run[2], re.MULTILINE) == ["| 2 | not run: stopping |"]


def test_shows_findings_culprits_tails_and_links(tmp_path):
    text = render_summary(mixed_run(tmp_path), tmp_path)

    assert "<br>rank 1 failed: assert tensor(1.) == 3</summary>" in text
    assert "rank 1 is the culprit; victim: rank 0, in call." in text
    assert "[rank1.log](logs/ddp-test_all_reduce-2/attempt-1/rank1.log)" in text
    assert "[   4.875] rank 1 step 39: loss 0.0250" in text
    assert text.index("Log of rank 1") < text.index("Log of rank 0")  # the culprit's first


def test_where_the_logs_are_not_there_are_no_links(tmp_path):
    text = render_summary(mixed_run(tmp_path), tmp_path, links=False)

    assert "](logs/" not in text
    assert "`logs/ddp-test_all_reduce-2/attempt-1/rank1.log`" in text


def test_a_missing_log_is_said_to_be_missing():
    sample = SampleRun()
    sample.test(Outcome.FAILED, message="m", ranks=(rank(0, log="logs/gone.log"),))

    assert "| 0 | passed | call | missing |  |" in render_summary(sample.finish())


def test_a_broken_machine_is_told_once():
    text = render_summary(mixed_run())

    assert text.count("fell off the bus") == 1
    assert "infrastructure · <b>2 tests</b>" in text


def huge(tmp_path, *, failures: int = 400) -> SampleRun:
    write_log(tmp_path, "logs/rank0.log", "0123456789\n" * 1_000)
    sample = SampleRun()
    for number in range(failures):
        ranks = (rank(0, log="logs/rank0.log"), rank(1, log="logs/rank0.log"))
        details = "\n".join(f"line {line} of a long traceback `~<" for line in range(500))
        sample.test(
            Outcome.FAILED, name=f"test_{number}", message=f"failed {number}", details=details, ranks=ranks
        )
    return sample


@pytest.mark.slow("400 failures with long logs")
@pytest.mark.parametrize("limit", [1_000_000, 100_000, 20_000, 8_000])
def test_always_fits_and_says_what_was_cut(tmp_path, limit):
    text = render_summary(huge(tmp_path).finish(), tmp_path, max_bytes=limit)

    assert len(text.encode()) <= limit
    assert text.startswith("## ❌ disttest: failed\n")
    assert "Shortened to fit" in text
    assert text.count("<details>") == text.count("</details>")


@pytest.mark.slow("400 failures with long logs")
def test_fits_even_where_nothing_is_left_to_cut(tmp_path):
    text = render_summary(huge(tmp_path).finish(), tmp_path, max_bytes=500)

    assert len(text.encode()) <= 500


@pytest.mark.slow("ten thousand suites")
def test_ten_thousand_suites_fit():
    sample = SampleRun()
    for number in range(10_000):
        sample.test(suite=f"suite_{number}")

    assert len(render_summary(sample.finish()).encode()) <= 1_048_576


def test_each_step_is_smaller_than_the_one_before():
    keys = [(step.failures, step.details, step.log, step.listed, step.table) for step in STEPS]

    assert keys == sorted(keys, reverse=True)


@pytest.mark.parametrize(
    "hostile",
    [
        "</details></summary>",
        "<script>alert(1)</script>",
        "| a | b |",
        "](http://evil)",
        "**bold** `code` ~~gone~~ @someone #1",
        "\n\n# heading\n",
        "<!--",
        "&lt;",
    ],
)
def test_markup_in_names_and_messages_stays_text(hostile):
    sample = SampleRun()
    case = {"nodeid": f"tests/x.py::t[{hostile}]", "suite": hostile}
    sample.test(
        Outcome.FAILED, message=hostile, cause=Cause.TEST, case=case, ranks=(rank(0, message=hostile),)
    )
    sample.note(hostile)
    html = rendered(render_summary(sample.finish()))

    assert html.count("<details>") == html.count("</details>") == 3
    assert not re.search(r"<(script|a|strong>bold|em|h1|del)\b", html)
    shown = re.sub(r"<[^>]+>", "", html)
    for letters in re.findall(r"[a-z]{4,}", hostile.replace("&lt;", "")):
        assert letters in shown


@given(st.text(alphabet="`~\n <a", max_size=60))
def test_no_text_ends_its_block_early(details):
    sample = SampleRun()
    sample.test(Outcome.FAILED, message="m", details=f"begin {details} end")
    html = rendered(render_summary(sample.finish()))

    assert html.count("<pre>") == 2  # the details and the timeline
    block = html[html.index("<pre>") : html.index("</pre>")]
    assert "begin" in block
    assert "end" in block


@pytest.mark.parametrize("name", ["اختبار_الجمع", "test_🔥_مرحبا", "x" * 5000])
def test_names_in_any_script_and_of_any_length(name):
    sample = SampleRun()
    sample.test(Outcome.FAILED, name=name, message="m")
    text = render_summary(sample.finish())

    assert name[:10] in text
    assert "Repeat:" in text


def test_shards_one_after_another_read_well():
    both = render_summary(mixed_run()) + "\n" + render_summary(mixed_run())

    assert rendered(both).count("<h2>") == 2


@pytest.mark.parametrize(
    ("outcome", "title"),
    [
        (Outcome.SKIPPED, "Tests that torch passes vacuously here:"),
        (Outcome.FAILED, "False greens avoided: torch's own rules would have passed"),
    ],
)
def test_what_torch_would_have_passed_is_listed(outcome, title):
    sample = SampleRun()
    for number in range(150):
        sample.test(outcome, name=f"test{number}x", size=None, torch_outcome=Outcome.PASSED)
    _, _, listed = render_summary(sample.finish()).partition(f"<summary>{title} 150 tests</summary>")

    assert [str(number) for number in range(100)] == re.findall(
        r"test(\d+)x", listed.partition("</details>")[0]
    )
    assert "and 50 more tests" in listed


def test_clock_that_went_backwards_and_tests_of_no_time():
    sample = SampleRun()
    sample.test(seconds=-5.0)
    sample.test(name="test_zero", seconds=0.0)
    text = render_summary(sample.finish())

    assert "| ddp | 2xgloo | 2 |  | 0 s |\n" in text
    assert not re.search(r"-\d", text)


def test_ranks_that_failed_alike_are_told_once():
    sample = SampleRun()
    ranks = tuple(
        rank(number, outcome=Outcome.FAILED, message="assert", details=f"in rank {number} at 0x{number}abc")
        for number in range(4)
    )
    sample.test(Outcome.FAILED, message="all 4 ranks failed", details=ranks[0].details, ranks=ranks)
    text = render_summary(sample.finish())

    assert "4 ranks alike: ranks 0-3" in text
    assert 1 == text.count("in rank ")


def test_it_can_be_read_as_plain_text():
    sample = SampleRun()
    sample.test(Outcome.FAILED, name="test_all_reduce", message="test_all_reduce: want (1, 2) == [3_4]!")
    sample.note("a_note (of some_file.py) said twice")
    sample.note("a_note (of some_file.py) said twice")
    text = render_summary(sample.finish())

    assert not re.search(r"&#\d+;", text)
    assert 1 == text.count("- a_note (of some_file.py) said twice")
    assert "<summary>1 note</summary>" in text
