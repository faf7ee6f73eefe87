"""The terminal: the end of a run, and a run while it lasts."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from rendered import render_final
from rich.console import Console
from sample_runs import EPOCH_S, SampleRun, mixed_run, rank, stopped_run

from disttest.model import Outcome
from disttest.plugins.github.hooks import disttest_ci_job
from disttest.reports.live import LiveView, render_live
from disttest.reports.progress import Progress, status_line
from disttest.reports.terminal import print_final
from disttest.reports.text import shorten
from disttest.reports.views import PlainView, make_view
from disttest.results.events import CollectionFailed, Noted, RunStarted, TestCollected, TestFinished

JOB = disttest_ci_job({"GITHUB_ACTIONS": "true"})


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
        assert " · failed · rank 1 is the culprit; victim: rank 0" in lines[at + 1]

    def test_a_broken_machine_is_told_once(self):
        assert render_final(mixed_run()).count("GPU 3 (NVIDIA H200) fell off the bus") == 1

    def test_the_path_of_a_log_opens_from_here(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        where = console()
        print_final(where, mixed_run(tmp_path / "out" / "results"), results_dir=tmp_path / "out" / "results")

        (log, *_) = re.findall(r"^  log: (\S+\.log)", said(where), re.MULTILINE)
        assert log.startswith("out/results/logs/")
        assert (tmp_path / log).is_file()

    def test_a_cut_text_says_what_shows_the_whole(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        sample = SampleRun()
        sample.test(Outcome.FAILED, message="rank 0 failed", details="a line\n" * 2000)
        where = console()
        print_final(where, sample.finish(), results_dir=tmp_path / "results")

        assert re.search(
            r"\[… [\d,]+ characters cut; disttest explain results shows the whole text …\]", said(where)
        )

    def test_repeat_commands_can_be_pasted(self):
        text = render_final(mixed_run(), width=40)

        assert "repeat: disttest run 'tests/test_ddp.py::test_all_reduce[2xgloo]' --world-sizes 2 " in text

    @pytest.mark.parametrize("width", [40, 100])
    def test_tests_that_were_not_run_are_not_counted_as_skipped(self, width):
        table = render_final(stopped_run(), width=width).partition("\nskipped")[0]

        if width == 40:
            assert "1 skipped 2 not run" in table
        else:
            titles, counts = (re.split(r"\s{2,}", line.strip()) for line in table.strip().splitlines()[-2:])
            counted = dict(zip(titles, counts, strict=True))
            assert (counted["skipped"], counted["not run"]) == ("1", "2")

    def test_reasons_of_tests_that_were_not_run_are_a_list_of_their_own(self):
        text = render_final(stopped_run())

        assert "\nskipped\n       1  no GPU\n\nnot run\n       2  not run: stopping\n" in text

    def test_ids_of_slow_tests_are_never_broken(self):
        lines = render_final(mixed_run(), width=40).splitlines()

        assert any(line.endswith("s  tests/test_ddp.py::test_all_reduce[2xgloo]") for line in lines)

    def test_skip_reasons_are_grouped(self):
        assert "       2  needs 2 GPUs, there are 0" in render_final(mixed_run())

    def test_a_long_skip_reason_goes_on_below_itself(self):
        text = render_final(mixed_run(), width=30)

        assert "       2  needs 2 GPUs, there\n          are 0\n" in text

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

    @pytest.mark.slow("ten thousand tests")
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
        view.handle(event)


CRASH = 'Current thread (most recent call first):\n  File "t.py", line 3 in test_x'


class TestFailure:
    def test_a_crash_is_told_by_the_end_of_the_culprits_log_not_by_how_its_victim_felt(self, tmp_path):
        (tmp_path / "rank1.log").write_text(
            "printed before\nFatal Python error: Segmentation fault\n\n"
            'Current thread 0x1 (most recent call first):\n  File "t.py", line 3 in test_x\n'
            '  File "/x/_pytest/python.py", line 1 in run\n\nExtension modules: numpy (total: 1)\nprinted by a child\n'
            "[disttest: stacks of rank 1 at the end]\nappended by us\n"
        )
        sample = SampleRun()
        victim = rank(0, outcome=Outcome.FAILED, message="RuntimeError: closed", details="long\n" * 100)
        culprit = rank(1, outcome=None, message="was killed by SIGSEGV", log="rank1.log", stacks=CRASH)
        sample.test(Outcome.FAILED, message="rank 1 died", culprit=1, victims=(0,), ranks=(victim, culprit))
        where = console()
        print_final(where, sample.finish(), results_dir=tmp_path)
        text = said(where)

        assert "    rank 0: failed in call: RuntimeError: closed [victim]\n" in text
        assert "long" not in text
        assert "end of the log of rank 1:\n    printed before\n" in text
        assert "    printed by a child\n" in text
        assert "Extension modules" not in text
        assert 1 == text.count("line 3 in test_x")
        assert "_pytest" not in text
        assert "appended by us" not in text


@pytest.mark.parametrize("make", [PlainView, LiveView])
def test_what_pytest_has_shown_is_not_shown_again(make):
    where = console()
    view = make(where)
    for message, shown in (("told by pytest", True), ("told by nobody", False)):
        view.handle(Noted(at_s=1.0, message=message, shown=shown))
    view.close()

    assert "told by nobody" in said(where)
    assert "told by pytest" not in said(where)


class TestPlainView:
    def test_one_block_per_test(self):
        where = console()
        fed(PlainView(where), sample_of_three())

        assert said(where).splitlines() == [
            "✓ tests/test_ddp.py::test_good[2xgloo] passed (500 ms)",
            "✗ tests/test_ddp.py::test_bad[2xgloo] failed (500 ms)",
            "tests/test_ddp.py:12: error: rank 1 failed",
            "  tests/test_ddp.py::test_bad[2xgloo] · failed",
            "    ranks 0, 1: passed",
            "  repeat: disttest run 'tests/test_ddp.py::test_bad[2xgloo]' --world-sizes 2 --backend gloo --device cpu",
            "- tests/test_ddp.py::test_not[2xgloo] skipped: no GPU (0 s)",
        ]

    def test_a_second_result_of_an_attempt_replaces_the_first(self):
        where, sample = console(), sample_of_three()
        view = PlainView(where)
        fed(view, sample)
        good = next(each.result for each in sample.events if isinstance(each, TestFinished))
        late = msgspec.structs.replace(good, outcome=Outcome.FAILED, message="rank 1 died later")
        view.handle(TestFinished(at_s=9.0, result=late))

        assert "rank 1 died later" in said(where)
        assert "attempt 1" not in said(where)

    def test_files_are_below_the_root_of_pytest_not_below_the_folder_of_the_command(self):
        where, sample = console(), sample_of_three()
        begun = sample.events[0]
        assert isinstance(begun, RunStarted)
        facts = msgspec.structs.replace(begun.invocation, workspace=begun.root)
        view = PlainView(where)
        view.handle(msgspec.structs.replace(begun, root=f"{begun.root}/below", invocation=facts))
        fed(view, sample)

        assert "tests/test_ddp.py:12: error: rank 1 failed" in said(where).splitlines()

    def test_on_github_what_went_well_is_folded_when_its_suite_is_complete(self):
        where = console()
        view = PlainView(where, job=JOB)
        fed(view, sample_of_three())
        lines = said(where).splitlines()

        assert lines[-4] == "::group::ddp: 2 tests went well"
        assert lines[-1] == "::endgroup::"

    @pytest.mark.parametrize("job", [None, JOB])
    def test_tests_that_the_run_did_not_come_to_have_no_line_each(self, job):
        sample = SampleRun()
        sample.test(name="test_good")
        sample.test(Outcome.NOT_RUN, name="test_after", message="not run: stopping", seconds=0.0)
        where = console()
        view = PlainView(where, job=job)
        fed(view, sample)
        view.close()

        assert "test_good" in said(where)
        assert "test_after" not in said(where)
        assert "2 tests went well" not in said(where)

    def test_what_is_held_back_is_said_at_the_end(self):
        sample = sample_of_three()
        sample.events.insert(1, TestCollected(at_s=EPOCH_S, test=pending("test_never")))
        where = console()
        view = PlainView(where, job=JOB)
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
                view.handle(event)
        view.tick(EPOCH_S + 29)
        assert said(where) == ""
        view.tick(EPOCH_S + 31)
        view.tick(EPOCH_S + 32)

        assert said(where) == "… 0/1 · 31.0 s · longest now: tests/test_ddp.py::test_sum[2xgloo] (31.0 s)\n"

    def test_quiet_leaves_out_what_went_well(self):
        where = console()
        fed(PlainView(where, quiet=True), sample_of_three())

        assert said(where).startswith("✗ tests/test_ddp.py::test_bad[2xgloo] failed")
        assert "test_good" not in said(where)

    def test_files_that_could_not_be_collected_are_told_in_full(self):
        where = console()
        view = PlainView(where)
        view.handle(CollectionFailed(at_s=EPOCH_S, nodeid="test_x.py", message="line 1\nImportError: no"))

        assert (
            said(where)
            == "✗ test_x.py could not be collected: ImportError: no\n    line 1\n    ImportError: no\n"
        )


class TestWhatPytestPrints:
    def test_whole_lines_pass_at_once_and_cut_ones_when_they_are_complete(self):
        where = console()
        view = PlainView(where)
        view.show("one\ntw", error=False)
        assert said(where) == "one\n"
        view.show("o\n", error=False)

        assert said(where) == "one\ntwo\n"

    def test_a_prompt_is_shown_though_its_line_has_no_end(self):
        where = console()
        view = PlainView(where)
        view.show("(Pdb) ", error=False)
        view.tick(EPOCH_S)
        view.show("(Pdb) ", error=False)

        assert said(where) == "(Pdb) "

    def test_nothing_is_lost_at_the_end(self):
        where = console()
        view = PlainView(where)
        view.show("the last word", error=False)
        view.close()

        assert said(where) == "the last word\n"

    def test_errors_go_where_errors_go(self, capsys):
        where = console()
        PlainView(where).show("usage: pytest\n", error=True)

        assert said(where) == ""
        assert capsys.readouterr().err == "usage: pytest\n"

    def test_the_live_view_lets_it_scroll_by_in_its_colours(self):
        where = console(terminal=True)
        where.legacy_windows = False
        view = LiveView(where)
        view.tick(EPOCH_S)
        view.show("\x1b[33mwarning\x1b[0m\n", error=False)
        view.close()

        assert "warning" in said(where)

    def test_the_live_view_steps_aside_for_a_debugger(self):
        where = console(terminal=True)
        view = LiveView(where)
        view.tick(EPOCH_S)
        view.show("> test_x.py(3)\n(Pdb) ", error=False)
        view.tick(EPOCH_S + 0.1)
        assert "(Pdb)" not in said(where)
        view.tick(EPOCH_S + 1)
        asked = said(where)
        view.tick(EPOCH_S + 2)

        assert asked.endswith("(Pdb) ")
        assert said(where) == asked
        view.show("3\n(Pdb) ", error=False)
        assert said(where) == f"{asked}3\n(Pdb) "
        fed(view, sample_of_three())
        view.close()

        assert "3/3" in said(where)


class TestLiveView:
    def test_failures_scroll_by_and_the_rest_goes_away(self):
        where = console(terminal=True)
        view = LiveView(where)
        fed(view, sample_of_three())
        view.close()
        text = said(where)

        assert "✗ rank 1 failed" in text
        assert "3/3 · 1 failed · 1 skipped" in text

    def test_counts_the_tests_that_the_run_did_not_come_to(self):
        progress = Progress()
        sample = SampleRun()
        sample.test(Outcome.SKIPPED, name="test_skipped", message="no GPU", seconds=0.0)
        sample.test(Outcome.NOT_RUN, name="test_after", message="not run: stopping", seconds=0.0)
        for event in sample.events:
            progress.handle(event)

        assert status_line(progress).plain.startswith("2/2 · 1 skipped · 1 not run")

    def test_shows_the_worlds_that_run_with_their_slots_and_seconds(self):
        progress = Progress()
        sample = SampleRun()
        sample.test(slots=("gpu:0", "gpu:1"))
        for event in sample.events:
            if type(event).__name__ not in ("TestFinished", "WorldEnded"):
                progress.handle(event)
        progress.now_s = EPOCH_S + 7
        where = console()
        where.print(render_live(progress, height=24))

        assert re.search(r"^gpu:0,1 +test_sum\[2xgloo\] +7\.0 s$", said(where), re.MULTILINE)

    def test_shows_worlds_between_their_tests(self):
        progress = Progress()
        sample = SampleRun()
        sample.test(slots=("gpu:2",), size=1)
        for event in sample.events:
            if type(event).__name__ in ("TestCollected", "WorldStarted"):
                progress.handle(event)
        progress.now_s = EPOCH_S + 3
        where = console()
        where.print(render_live(progress, height=24))

        assert re.search(r"^gpu:2 +world of 1 rank, between tests +3\.0 s$", said(where), re.MULTILINE)

    @pytest.mark.parametrize("width", [20, 40, 80, 250])
    def test_fits_any_width(self, width):
        progress = Progress()
        sample = SampleRun()
        sample.test(name="test_" + "x" * 300, slots=tuple(f"gpu:{n}" for n in range(64)), size=64)
        for event in sample.events:
            if type(event).__name__ not in ("TestFinished", "WorldEnded"):
                progress.handle(event)
        where = console(width=width)
        where.print(render_live(progress, height=24))

        assert all(len(line) <= width for line in said(where).splitlines())

    def test_says_that_it_collects_before_anything_is_known(self):
        progress = Progress()
        for event in SampleRun().events:
            progress.handle(event)
        progress.now_s = EPOCH_S + 4

        assert status_line(progress).plain == "collecting · 4.0 s"

    def test_never_higher_than_the_terminal(self):
        progress = Progress()
        sample = SampleRun()
        for number in range(200):
            sample.test(name=f"test_{number}", at_s=EPOCH_S)
        for event in sample.events:
            if type(event).__name__ not in ("TestFinished", "WorldEnded"):
                progress.handle(event)
        where = console(width=40)
        where.print(render_live(progress, height=24))

        assert len(said(where).splitlines()) <= 24

    @pytest.mark.parametrize(
        ("terminal", "on_github", "kind"),
        [(True, False, LiveView), (True, True, PlainView), (False, False, PlainView)],
    )
    def test_the_place_decides(self, terminal, on_github, kind):
        view = make_view(console(terminal=terminal), live=not on_github)
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
                progress.handle(event)
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

    def test_the_time_so_far_counts_from_the_command_the_time_left_from_the_first_test(self):
        progress = Progress()
        for event in SampleRun().events:
            progress.handle(event)
            progress.handle(msgspec.structs.replace(event, at_s=EPOCH_S + 5))
        progress.now_s = EPOCH_S + 6

        assert status_line(progress).plain == "collecting · 6.0 s"
        assert progress.started_at_s == EPOCH_S + 5

    def test_expectations_are_asked_for_once_a_test(self):
        asked = []
        progress = Progress(expect=lambda test: asked.append(test.name) or 2.0)
        for event in sample_of_three().events:
            progress.handle(event)

        assert len(asked) == 3
        assert progress.left_known_s == 0.0

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


@pytest.mark.parametrize("extra", range(1, 120, 7))
def test_no_text_is_cut_by_less_than_the_mark_that_says_so(extra):
    text = "x" * (300 + extra)
    assert len(shorten(text, 300)) <= len(text)
