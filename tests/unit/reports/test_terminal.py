"""The terminal: the end of a run, and a run while it lasts."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from sample_runs import EPOCH_S, SampleRun, mixed_run, rank

from disttest.model import Outcome
from disttest.reports.progress import LiveView, PlainView, Progress, make_view, render_live, status_line
from disttest.reports.terminal import print_final, render_final
from disttest.results.events import TestCollected, TestFinished


def console(*, width: int = 100, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, height=24, force_terminal=terminal, color_system=None)


def said(where: Console) -> str:
    assert isinstance(where.file, io.StringIO)
    return where.file.getvalue()


class TestFinal:
    def test_golden(self, golden, tmp_path):
        golden("terminal.txt", render_final(mixed_run(tmp_path), width=100))

    @pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
    def test_narrow_and_wide(self, width):
        text = render_final(mixed_run(), width=width)

        assert "3 failed" in " ".join(text.split())
        table = text[text.index("slowest") - 1000 : text.index("slowest")]
        assert all(len(line) <= width for line in table.splitlines()[-6:])

    def test_the_finding_comes_first_with_a_place_to_jump_to(self):
        lines = render_final(mixed_run()).splitlines()

        at = lines.index("tests/test_ddp.py:19: error: rank 1 failed: assert tensor(1.) == 3")
        assert "fault: test · rank 1 is the culprit; victim: rank 0" in lines[at + 1]

    def test_a_broken_machine_is_told_once(self):
        assert render_final(mixed_run()).count("GPU 3 (NVIDIA H200) fell off the bus") == 1

    def test_repeat_commands_can_be_pasted(self):
        text = render_final(mixed_run(), width=40)

        assert "repeat: disttest run 'tests/test_ddp.py::test_all_reduce[2xgloo]' --world-sizes 2 " in text

    def test_skip_reasons_are_grouped(self):
        assert "       2  needs 2 GPUs, there are 0" in render_final(mixed_run())

    def test_no_color_where_none_is_wanted(self, monkeypatch):
        monkeypatch.setenv("NO_COLOR", "1")
        where = Console(file=io.StringIO(), force_terminal=True, width=80)
        print_final(where, mixed_run())

        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", said(where))

    def test_colour_where_it_is(self):
        assert "\x1b[1;31m" in render_final(mixed_run(), color=True)

    def test_markup_and_escapes_in_a_test_stay_text(self):
        sample = SampleRun()
        sample.test(
            Outcome.FAILED, message="[red]not markup[/red] \x1b[2J", details="[bold]x\x1b]0;title\x07y"
        )
        text = render_final(sample.finish())

        assert "[red]not markup[/red]" in text
        assert "[bold]xy" in text
        assert "\x1b" not in text

    def test_on_github_a_test_can_not_issue_commands(self):
        sample = SampleRun()
        sample.test(Outcome.FAILED, message="m", details="::error::forged")
        where = console()
        print_final(where, sample.finish(), on_github=True)
        before, _, after = said(where).partition("::error::forged")

        token = re.findall(r"^::stop-commands::(\w+)$", before, re.MULTILINE)[-1]
        assert f"::{token}::\n" in after

    def test_ten_thousand_tests_fit_a_screen_of_table_and_fifty_failures(self):
        sample = SampleRun()
        for number in range(10_000):
            outcome = Outcome.FAILED if number % 100 == 0 else Outcome.PASSED
            sample.test(outcome, name=f"test_{number}", message="bad")
        text = render_final(sample.finish())

        assert "… and 50 more failures, all in junit.xml" in text
        assert len(text.splitlines()) < 350

    def test_a_run_that_ended_early_says_why(self):
        text = render_final(SampleRun().finish(124, "the deadline of 60 s passed"))

        assert text.endswith("stopped at its deadline: 0 tests in 0 s\nthe deadline of 60 s passed\n")


def fed(view: LiveView | PlainView, sample: SampleRun) -> None:
    for event in sample.events:
        view.take(event)


class TestPlainView:
    def test_one_block_per_test(self):
        where = console()
        fed(PlainView(where), sample_of_three())

        assert said(where).splitlines() == [
            "✓ tests/test_ddp.py::test_good[2xgloo] passed (500 ms)",
            "✗ tests/test_ddp.py::test_bad[2xgloo] failed (500 ms)",
            "tests/test_ddp.py:12: error: rank 1 failed",
            "  tests/test_ddp.py::test_bad[2xgloo] · fault: test",
            "  repeat: disttest run 'tests/test_ddp.py::test_bad[2xgloo]' --world-sizes 2 --backend gloo --device cpu",
            "- tests/test_ddp.py::test_not[2xgloo] skipped: no GPU (0 s)",
        ]

    def test_on_github_what_went_well_is_folded_when_its_suite_is_complete(self):
        where = console()
        view = PlainView(where, on_github=True)
        fed(view, sample_of_three())
        lines = said(where).splitlines()

        assert lines[-4] == "::group::ddp: 2 tests went well"
        assert lines[-1] == "::endgroup::"

    def test_what_is_held_back_is_said_at_the_end(self):
        sample = sample_of_three()
        sample.events.insert(1, TestCollected(at_s=EPOCH_S, test=pending("test_never")))
        where = console()
        view = PlainView(where, on_github=True)
        fed(view, sample)
        assert "::group::" not in said(where)
        view.close()

        assert "::group::ddp: 2 tests went well" in said(where)

    def test_a_quiet_run_gives_a_sign_of_life(self):
        sample = SampleRun()
        sample.test()
        where = console()
        view = PlainView(where)
        for event in sample.events:
            if not isinstance(event, TestFinished):
                view.take(event)
        view.tick(EPOCH_S + 29)
        assert said(where) == ""
        view.tick(EPOCH_S + 31)
        view.tick(EPOCH_S + 32)

        assert said(where) == "… 0/1 · 31.0 s · longest now: tests/test_ddp.py::test_sum[2xgloo] (31.0 s)\n"


class TestLiveView:
    def test_failures_scroll_by_and_the_rest_goes_away(self):
        where = console(terminal=True)
        view = LiveView(where)
        fed(view, sample_of_three())
        view.close()
        text = said(where)

        assert "✗ rank 1 failed" in text
        assert "3/3 · 1 failed · 1 skipped" in text

    def test_shows_the_worlds_that_run_with_their_slots_and_seconds(self):
        progress = Progress()
        sample = SampleRun()
        sample.test(slots=("gpu:0", "gpu:1"))
        for event in sample.events:
            if type(event).__name__ not in ("TestFinished", "WorldEnded"):
                progress.take(event)
        progress.now_s = EPOCH_S + 7
        where = console()
        where.print(render_live(progress, height=24))

        assert re.search(r"^gpu:0,1 +test_sum\[2xgloo\] +7\.0 s$", said(where), re.MULTILINE)

    def test_never_higher_than_the_terminal(self):
        progress = Progress()
        sample = SampleRun()
        for number in range(200):
            sample.test(name=f"test_{number}", at_s=EPOCH_S)
        for event in sample.events:
            if type(event).__name__ not in ("TestFinished", "WorldEnded"):
                progress.take(event)
        where = console(width=40)
        where.print(render_live(progress, height=24))

        assert len(said(where).splitlines()) <= 24

    @pytest.mark.parametrize(
        ("terminal", "on_github", "kind"),
        [(True, False, LiveView), (True, True, PlainView), (False, False, PlainView)],
    )
    def test_the_place_decides(self, terminal, on_github, kind):
        view = make_view(console(terminal=terminal), on_github=on_github)
        view.close()

        assert type(view) is kind


class TestTimeLeft:
    def progress(self, **expected: float) -> Progress:
        sample = SampleRun()
        for number in range(4):
            sample.test(name=f"test_{number}", seconds=2.0)
        progress = Progress(
            expected_s={f"tests/test_ddp.py::{name}[2xgloo]": s for name, s in expected.items()}
        )
        finished = 0
        for event in sample.events:
            finished += isinstance(event, TestFinished)
            if finished <= 2 or isinstance(event, TestCollected):
                progress.take(event)
        return progress

    def test_unknown_tests_take_as_long_as_the_others_did(self):
        progress = self.progress()
        progress.running.clear()

        assert progress.left_s() == pytest.approx(4.0)

    def test_known_tests_take_as_long_as_they_used_to(self):
        progress = self.progress(test_2=10.0, test_3=20.0)
        progress.running.clear()

        assert progress.left_s() == pytest.approx(30.0)
        assert "about 30.0 s left" in status_line(progress).plain

    def test_nothing_to_go_by(self):
        assert Progress().left_s() is None


def pending(name: str):
    sample = SampleRun()
    sample.test(name=name)
    (event,) = [event for event in sample.events if isinstance(event, TestCollected)]
    return event.test


def sample_of_three() -> SampleRun:
    sample = SampleRun()
    sample.test(name="test_good")
    sample.test(Outcome.FAILED, name="test_bad", message="rank 1 failed", ranks=(rank(0), rank(1)))
    sample.test(Outcome.SKIPPED, name="test_not", message="no GPU", seconds=0.0)
    # In a real journal all tests are collected before the first one starts.
    sample.events.sort(key=lambda event: not isinstance(event, TestCollected))
    sample.events.sort(key=lambda event: type(event).__name__ != "RunStarted")
    return sample
