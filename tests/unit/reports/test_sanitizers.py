"""Findings of sanitizers in every report: which line, which ranks, what comes of it, what to do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rendered import render_final
from sample_runs import SampleRun, rank

from disttest.cli.stored_run import select
from disttest.extras.explain.command import render_explanation
from disttest.extras.sanitizers.choice import words_of
from disttest.model import Cause, Outcome, PluginFinding, RankCalls, SeenCall
from disttest.plugins.github.annotations import render_annotations
from disttest.plugins.summary.render import render_summary
from disttest.reports.aggregates import warnings_of
from disttest.reports.junit import render_junit
from disttest.results.findings import MOST_FINDINGS, with_findings

MESSAGE = "ranks disagree at collective #1 of group default: rank 0 called all_reduce SUM, rank 1 called all_reduce MAX"
EFFECT = "Every rank reduces by an operation of its own."
ADVICE = "Call it with the same operation on all ranks."


def order_of(number: int, line: int, what: str) -> RankCalls:
    file = "/nowhere/repo/tests/test_ddp.py"
    calls = (
        SeenCall(what="barrier", file=file, line=3),
        SeenCall(what=what, file=file, line=line, decides=True),
    )
    return RankCalls(rank=number, calls=calls)


FINDING = PluginFinding(
    finder="order",
    kind="mismatch",
    **words_of("order"),
    message=MESSAGE,
    effect=EFFECT,
    advice=ADVICE,
    orders=(order_of(0, 39, "all_reduce SUM"), order_of(1, 41, "all_reduce MAX")),
)
FAILING = msgspec.structs.replace(FINDING, fails=True)


def sample_of(*findings: PluginFinding, size: int = 2) -> SampleRun:
    sample = SampleRun()
    sample.test(name="test_sum", size=size, findings=findings, ranks=(rank(0), rank(1)))
    return sample


@pytest.fixture
def warned():
    return sample_of(FINDING).finish()


@pytest.fixture
def failed():
    sample = SampleRun()
    message = f"sanitizer order: {MESSAGE}"
    sample.test(Outcome.FAILED, name="test_sum", cause=Cause.TEST, message=message, findings=(FAILING,))
    return sample.finish()


class TestResult:
    def test_a_warning_leaves_the_verdict_as_it_is(self, warned):
        passed = msgspec.structs.replace(warned.tests[0].final, findings=())
        result = with_findings(passed, (FINDING,), ("some were not compared",))

        assert (Outcome.PASSED, (FINDING,)) == (result.outcome, result.findings)
        assert ("some were not compared",) == result.notes

    def test_a_finding_that_fails_is_the_failure_of_the_test(self, warned):
        result = with_findings(warned.tests[0].final, (FINDING, FAILING))

        assert (Outcome.FAILED, Cause.TEST) == (result.outcome, result.cause)
        assert result.message == f"sanitizer order: {MESSAGE}"

    def test_a_hundred_are_twenty_and_a_note(self, warned):
        passed = msgspec.structs.replace(warned.tests[0].final, findings=())
        result = with_findings(passed, (FINDING,) * 100)

        assert MOST_FINDINGS == len(result.findings)
        assert ("80 more findings of sanitizer order",) == result.notes


class TestWarning:
    def test_terminal(self, warned):
        text = render_final(warned, width=300)

        assert f"tests/test_ddp.py:39: warning: {MESSAGE}" in text
        assert f"effect: {EFFECT}" in text
        assert f"what to do: {ADVICE}" in text
        assert "sanitizer order: mismatch · tests/test_ddp.py::test_sum[2xgloo]" in text
        assert "passed: 1 passed" in text

    def test_the_same_lines_in_several_worlds_are_told_once(self):
        sample = sample_of(FINDING)
        sample.test(name="test_sum", size=4, findings=(FINDING,))
        text = render_final(sample.finish(), width=300)

        assert text.count("warning: ") == 1
        assert "tests/test_ddp.py::test_sum[2xgloo] and 1 more test" in text

    def test_annotation_at_the_line_of_the_call(self, warned):
        (line,) = render_annotations(warned).splitlines()

        assert line.startswith(
            "::warning title=sanitizer order%3A mismatch,file=tests/test_ddp.py,line=39::ranks disagree"
        )
        assert f"%0A{EFFECT}%0A{ADVICE}%0Ain tests/test_ddp.py::test_sum[2xgloo]" in line

    def test_a_call_outside_of_the_repository_stands_at_the_test(self):
        orders = (RankCalls(rank=0, calls=(SeenCall(what="x", file="/usr/lib/x.py", line=3, decides=True),)),)
        run = sample_of(msgspec.structs.replace(FINDING, orders=orders)).finish()

        assert "file=tests/test_ddp.py,line=12::" in render_annotations(run)

    def test_summary(self, warned):
        text = render_summary(warned)

        assert "### Sanitizers" in text
        assert "sanitizer order: mismatch · " in text
        assert f"What to do: {ADVICE}" in text

    def test_junit_keeps_the_test_green(self, warned):
        text = render_junit(warned)

        assert f"sanitizer order: {MESSAGE}" in text
        assert "<failure" not in text

    def test_explain_tells_it(self, warned):
        (outcome,) = select(warned, "")
        text = render_explanation(outcome, warned, Path("results"))

        assert f"sanitizer order: {MESSAGE}\n  effect: {EFFECT}\n  what to do: {ADVICE}\n" in text


class TestFailure:
    def test_terminal(self, failed):
        text = render_final(failed, width=300)

        assert f"error: sanitizer order: {MESSAGE}" in text
        assert f"what to do: {ADVICE}" in text
        assert "warning:" not in text

    def test_junit_says_what_kind_of_failure(self, failed):
        text = render_junit(failed)

        assert 'type="sanitizer"' in text
        assert f"what to do: {ADVICE}" in text

    def test_it_is_an_error_beside_the_code(self, failed):
        assert render_annotations(failed).startswith("::error title=test_sum[2xgloo]")


def test_a_warning_of_two_tests_about_the_same_lines_is_one_with_both():
    sample = SampleRun()
    elsewhere = msgspec.structs.replace(FINDING, orders=(order_of(0, 77, "all_reduce SUM"),))
    for name, findings in {
        "test_a": (FINDING,),
        "test_b": (FINDING, FAILING),
        "test_c": (elsewhere,),
    }.items():
        sample.test(name=name, size=2, findings=findings, ranks=(rank(0), rank(1)))

    shown = [[test.test.name for test in warned.tests] for warned in warnings_of(sample.finish())]

    assert [[name.partition("[")[0] for name in names] for names in shown] == [
        ["test_a", "test_b"],
        ["test_c"],
    ]
