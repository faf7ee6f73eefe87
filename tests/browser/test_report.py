"""The report in a real browser: what people click, press, and see."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect
from sample_runs import EPOCH_S, SampleRun, rank, write_log

from disttest.extras.sanitizers.choice import words_of
from disttest.model import (
    Edge,
    Outcome,
    PluginFinding,
    RankCalls,
    SeenCall,
)
from disttest.plugins.deadlock.proven import Deadlock, DeadlockKind, cause_of
from disttest.plugins.html.render import render_html
from disttest.reports.write import write_reports


def view_of(page: Page) -> tuple[float, float]:
    begin, end = page.locator("#chart").get_attribute("data-view").split()
    return float(begin), float(end)


RECORD_CANVAS = """
// What is on the canvas since it was cleared, in the order in which it was drawn: words, and upright lines.
window.drawn = [];
let at = [0, 0];
const { clearRect, fillText, moveTo, lineTo } = CanvasRenderingContext2D.prototype;
Object.assign(CanvasRenderingContext2D.prototype, {
  clearRect(...place) { drawn.length = 0; clearRect.apply(this, place); },
  fillText(text, x, y, room = Infinity) {
    drawn.push({ text, x, y, wide: Math.min(room, this.measureText(text).width) });
    fillText.call(this, text, x, y, Math.min(room, 1e6));
  },
  moveTo(x, y) { at = [x, y]; moveTo.call(this, x, y); },
  lineTo(x, y) {
    if (at[0] === x) drawn.push({ line: x, from: Math.min(at[1], y), to: Math.max(at[1], y) });
    at = [x, y];
    lineTo.call(this, x, y);
  },
});
window.crossedOut = () => drawn.filter((word, index) => word.text && drawn.slice(index).some((one) =>
  one.line > word.x && one.line < word.x + word.wide && one.from < word.y && one.to > word.y)).map((word) => word.text);
"""


class TestGreen:
    def test_says_so_and_lists_every_test(self, visit, green):
        page = visit().open(green)

        expect(page.locator("h1")).to_have_text("✓ passed")
        expect(page.locator("#list tbody tr")).to_have_count(4)
        expect(page.locator("#failures")).to_have_count(0)

    def test_a_test_that_passed_links_the_logs_of_its_ranks(self, visit, green):
        page = visit().open(green)
        page.get_by_role("button", name=re.compile(r"test_sum.*2xgloo")).first.click()
        link = page.get_by_role("link", name="log of rank 1")

        assert (green.parent / link.get_attribute("href")).is_file()


class TestFindings:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("test_segfault", "rank 1 of 2 was killed by SIGSEGV"),
            ("test_sigkill", "rank 1 of 2 was killed by SIGKILL"),
            ("test_exit_0", "rank 1 of 2 exited with code 0"),
            ("test_fails_while_peer_waits", "ValueError: boom on rank 1"),
            ("test_one_rank_finishes_other_hangs", "rank 0 had finished"),
        ],
    )
    def test_each_opens_with_its_finding_its_ranks_and_commands(self, visit, red, name, words):
        page = visit().open(red)
        page.locator("#failures").get_by_role("button", name=re.compile(rf"::{name}\[")).click()
        sheet = page.get_by_role("dialog")

        expect(sheet.locator(".finding + .rest, .finding").last).to_contain_text(words)
        expect(sheet.locator(".lanes .track")).to_have_count(2)
        expect(sheet.locator(".repeat code").first).to_contain_text(f"::{name}[2xgloo]'")
        expect(sheet.locator(".repeat code").last).to_have_text(
            re.compile(r"^disttest explain rank-[a-z-]+$")
        )

    @pytest.mark.parametrize(
        ("name", "code"), [("test_segfault", "ctypes.string_at(0)"), ("test_hang", "time.sleep(600)")]
    )
    def test_the_card_of_a_crash_and_of_a_hang_shows_the_line(self, visit, red, name, code):
        page = visit().open(red)
        card = page.locator(
            "#failures .card", has=page.get_by_role("button", name=re.compile(f"::{name}\\["))
        )

        expect(card.locator(".source")).to_have_text(code)

    def test_the_commands_of_a_card_are_folded(self, visit, red):
        page = visit().open(red)
        cards = page.locator("#failures .card")
        assert cards.count() > 13
        assert page.locator("#failures").bounding_box()["height"] < 150 * cards.count()
        for command in cards.first.locator(".repeat").all():
            expect(command).to_be_hidden()
        cards.first.get_by_text("repeat").click()
        for command in cards.first.locator(".repeat").all():
            expect(command).to_be_visible()

    def test_a_hang_shows_where_each_rank_stood(self, visit, red):
        page = visit().open(red)
        page.locator("#failures").get_by_role("button", name=re.compile(r"::test_hang\[")).click()
        sheet = page.get_by_role("dialog")

        expect(sheet.locator(".track .hung")).to_have_count(2)
        expect(sheet.locator(".lanes .axis span")).to_have_count(3)
        expect(sheet.locator(".track .hung").first).to_have_text(re.compile(r"still in call \d"))
        expect(sheet.locator("pre", has_text="in test_hang").first).to_be_visible()

    def test_labels_of_a_rank_s_phases_are_whole_or_not_shown_and_no_mark_lies_over_them(self, visit, red):
        page = visit().open(red)
        page.locator("#failures").get_by_role("button", name=re.compile(r"::test_hang\[")).click()
        shown, clipped, covered = page.get_by_role("dialog").locator(".lanes").evaluate(_LABELS)

        assert shown
        assert (clipped, covered) == ([], [])

    def test_a_hang_shows_the_collective_at_which_the_ranks_part(self, visit, red):
        page = visit().open(red)
        page.locator("#failures").get_by_role("button", name=re.compile(r"::test_hang\[")).click()
        parting = page.locator(".collectives tr.parts")

        expect(parting).to_have_count(1)
        expect(parting).to_contain_text("ranks differ")
        expect(parting.locator("td")).to_contain_text(
            [re.compile(r"barrier waits · .*, for \d"), "not in its recorder"]
        )

    def test_the_box_of_collectives_opens_at_the_first_difference(self, visit, parted):
        page = visit().open(parted)
        page.locator("#failures").get_by_role("button", name=re.compile(r"::test_parts\[")).click()

        assert page.locator(".collectives").evaluate("box => box.scrollHeight > box.clientHeight")
        box = page.locator(".collectives").bounding_box()
        row = page.locator(".collectives tr.parts").bounding_box()
        assert box["y"] <= row["y"] and row["y"] + row["height"] <= box["y"] + box["height"]

    def test_a_phone_shows_suite_and_world_of_each_test(self, visit, red):
        page = visit(width=390).open(red)

        expect(page.locator("#list tbody .narrow").first).to_be_visible()

    def test_the_culprit_comes_first_and_is_marked(self, visit, red):
        page = visit().open(red)
        page.locator("#failures").get_by_role("button", name=re.compile(r"::test_segfault\[")).click()

        expect(page.locator("#test-title .badge")).to_have_text("crashed")
        expect(page.locator(".ranks article").first).to_contain_text("rank 1culprit")
        expect(page.locator(".lanes .part")).to_have_count(2)

    def test_odd_output_stays_text(self, visit, red):
        page = visit().open(red)
        page.locator("#failures").get_by_role("button", name=re.compile("test_prints_oddities")).click()

        expect(page.get_by_role("dialog").locator(".finding")).to_contain_text("]]>")

    def test_all_kinds_of_failure_are_told_apart(self, visit, mixed):
        page = visit().open(mixed)
        badges = page.locator("#failures .badge").all_inner_texts()

        assert badges == ["not collected", "failed", "timed out", "crashed", "infrastructure"]
        expect(page.locator("#failures")).to_contain_text("2 tests, the first is test_on_broken_gpu[2xgloo]")

    def test_attempts_of_a_flaky_test(self, visit, mixed):
        page = visit().open(mixed)
        page.locator("#results").get_by_role("button", name=re.compile("test_flaky")).first.click()
        page.get_by_role("button", name="Attempt 1: failed").click()

        expect(page.get_by_role("dialog")).to_contain_text("connection reset by peer")


class TestFilters:
    def test_by_text_suite_world_and_result(self, visit, mixed):
        page = visit().open(mixed)
        rows = page.locator("#list tbody tr")
        expect(rows).to_have_count(14)
        page.get_by_label("Name or message").fill("SIGSEGV")
        expect(rows).to_have_count(1)
        page.get_by_label("Name or message").fill("")
        page.locator("#f-suite").select_option(label="collectives")
        expect(rows).to_have_count(7)
        page.locator("#f-shape").select_option(label="4xgloo")
        expect(rows).to_have_count(2)
        page.get_by_role("button", name="skipped 3").click()
        expect(rows).to_have_count(1)
        expect(page.locator("#shown")).to_have_text("1 of 14 tests, 0 s")

    def test_sorted_by_time_and_back(self, visit, mixed):
        page = visit().open(mixed)
        page.get_by_role("button", name="time", exact=True).click()
        expect(page.locator("#list tbody tr").first).to_contain_text("test_hang")
        page.get_by_role("button", name="time", exact=True).click()
        expect(page.locator("#list tbody tr").last).to_contain_text("test_hang")
        expect(page.locator("th[aria-sort=descending]")).to_contain_text("time")


class TestTimeline:
    def test_zoom_and_back(self, visit, mixed):
        page = visit().open(mixed)
        begin, end = view_of(page)
        page.get_by_role("button", name="Zoom in").click()
        inner = view_of(page)
        assert begin < inner[0] < inner[1] < end
        page.get_by_role("button", name="All", exact=True).click()
        assert view_of(page) == (begin, end)

    def test_drag_pans(self, visit, mixed):
        page = visit().open(mixed)
        page.get_by_role("button", name="Zoom in").click()
        before = view_of(page)
        page.locator("#chart").scroll_into_view_if_needed()
        box = page.locator("#chart").bounding_box()
        page.mouse.move(box["x"] + 600, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + 400, box["y"] + 60, steps=4)
        page.mouse.up()

        assert view_of(page)[0] > before[0]
        expect(page.get_by_role("dialog")).to_have_count(0)

    def test_hover_tells_and_click_opens(self, visit, mixed):
        page = visit().open(mixed)
        chart = page.locator("#chart")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        middle = (box["width"] * 0.55, 60)
        chart.hover(position={"x": middle[0], "y": middle[1]})
        expect(page.locator("#tip")).to_contain_text("test_hang[2xgloo]")
        expect(page.locator("#tip")).to_contain_text("on cpu:0, cpu:1")
        chart.click(position={"x": middle[0], "y": middle[1]})
        expect(page.locator("#test-title")).to_contain_text("test_hang[2xgloo]")

    def test_by_keyboard_alone(self, visit, mixed):
        page = visit().open(mixed)
        page.locator("#chart").focus()
        said = page.locator("#chart-said")
        page.keyboard.press("Home")
        expect(said).to_contain_text("test_gradients_equal_single_process[1xgloo]")
        page.keyboard.press("ArrowRight")
        expect(said).to_contain_text("test_gradients_equal_single_process[2xgloo]")
        page.keyboard.press("+")
        page.keyboard.press("0")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert page.evaluate("document.activeElement.id") == "chart"


class TestLogs:
    @pytest.fixture
    def report(self, tmp_path):
        logs = []
        for number in range(2):
            # Rank 1 is a second late and says less: only the times bring the lines together.
            lines = [
                f"12:00:{second:02d}.000 rank {number} second {second}"
                for second in range(number, 60, number + 1)
            ]
            lines.insert(0, "<script>alert('log')</script>")
            logs.append(write_log(tmp_path, f"logs/s/attempt-1/rank{number}.log", "\n".join(lines * 3)))
        sample = SampleRun()
        ranks = (*(rank(number, log=log) for number, log in enumerate(logs)), rank(2, log="logs/gone.log"))
        sample.test(Outcome.FAILED, message="bad", ranks=ranks, culprit=1)
        write_reports(sample.finish(), tmp_path)
        return tmp_path / "report.html"

    def test_scroll_together_by_time(self, visit, report):
        page = visit().open(report, "#test=0")
        first = page.get_by_label("Log of rank 0")
        first.hover()
        first.evaluate("box => { box.scrollTop = 18 * 21; }")
        second = page.get_by_label("Log of rank 1")
        # 20 s is at the top of rank 0; rank 1 has 19 and 21.
        expect(second).to_have_js_property("scrollTop", 18 * 11)
        row = second.evaluate("box => box.children[Math.round(box.scrollTop / 18)].textContent")

        assert row == "12:00:21.000 rank 1 second 21"

    def test_or_each_alone(self, visit, report):
        page = visit().open(report, "#test=0")
        page.get_by_label(re.compile("scroll together")).uncheck()
        first = page.get_by_label("Log of rank 0")
        first.hover()
        first.evaluate("box => { box.scrollTop = 360; }")
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

        assert page.get_by_label("Log of rank 1").evaluate("box => box.scrollTop") == 0

    def test_search_marks_lines_in_all_of_them(self, visit, report):
        page = visit().open(report, "#test=0")
        search = page.get_by_placeholder("in all logs")
        search.fill("second 21")
        expect(page.locator(".hit")).to_have_count(6)
        search.press("Enter")
        expect(page.get_by_text("1 of 6 lines")).to_be_visible()

    def test_markup_in_a_log_stays_text_and_a_missing_log_is_said(self, visit, report):
        page = visit().open(report, "#test=0")

        expect(page.get_by_label("Log of rank 0")).to_contain_text("<script>alert('log')</script>")
        expect(page.get_by_label("Log of rank 2")).to_have_text("There is no file logs/gone.log.")


@pytest.fixture(scope="module")
def proven(tmp_path_factory):
    def order(number, *calls):
        file = "/nowhere/repo/tests/test_ddp.py"
        seen = (
            SeenCall(what=f"all_reduce SUM, group {name}", file=file, line=line, decides=decides)
            for name, line, decides in calls
        )
        return RankCalls(rank=number, calls=tuple(seen))

    finding = PluginFinding(
        finder="order",
        **words_of("order"),
        kind="group-order",
        message="ranks use groups in orders that wait for each other: <b>rank 0</b> calls a, then b",
        effect="Gloo passes. Over NCCL the ranks wait for each other.",
        advice="Issue them in the same order on all ranks.",
        orders=(
            order(0, ("default", 8, False), ("first", 9, True), ("second", 10, True)),
            order(1, ("default", 8, False), ("second", 12, True), ("first", 13, True)),
        ),
    )
    edges = (
        Edge(rank=0, what="recv #1 from rank 1", where="test_ddp.py:33", since_s=1.5, ranks=(1,)),
        Edge(rank=1, what="all_reduce #3 of group default", since_s=1.0, ranks=(0, 2)),
        Edge(rank=3, what="barrier #1 of group default", ranks=(2,), reason="which has finished the test"),
    )
    deadlock = Deadlock(kind=DeadlockKind.FINISHED, edges=edges, finished=(2,), after_s=2.0)
    folder = tmp_path_factory.mktemp("proven")
    sample = SampleRun()
    sample.test(name="test_groups", findings=(finding,), ranks=(rank(0), rank(1)))
    sample.test(name="test_groups", size=4, findings=(finding,))
    sample.test(
        Outcome.FAILED,
        name="test_waits",
        message="deadlock: no rank can continue",
        sections={"deadlock": cause_of(deadlock).section},
    )
    sample.test(Outcome.FAILED, name="test_replicas", message="they part", findings=(parted_replicas(),))
    write_reports(sample.finish(), folder)
    return folder / "report.html"


def parted_replicas():
    sights = (("gradient of w before step 1", True), ("parameter w after step 1", False))
    calls = tuple(SeenCall(what=what, same=same, decides=not same) for what, same in sights)
    return PluginFinding(
        finder="values",
        kind="parameter",
        message="parameter w after step 1 differs",
        effect="Each rank trains a model of its own.",
        advice="Look for settings that differ.",
        fails=True,
        orders=tuple(RankCalls(rank=number, calls=calls) for number in (0, 1)),
    )


class TestWhatWasProven:
    """Findings of sanitizers with both orders side by side, and the graph of a deadlock."""

    def test_a_finding_of_two_tests_has_one_card(self, visit, proven):
        page = visit().open(proven)
        card = page.locator("#sanitizers .card")

        expect(card).to_have_count(1)
        expect(card).to_contain_text("sanitizer order: group-order")
        expect(card).to_contain_text("<b>rank 0</b> calls a, then b")
        expect(card).to_contain_text("and 1 more test")
        expect(card).to_contain_text("tests/test_ddp.py:9")

    def test_the_orders_of_the_ranks_stand_side_by_side(self, visit, proven):
        page = visit().open(proven)
        page.locator("#sanitizers").get_by_role("button").click()
        lists = page.get_by_role("dialog").locator(".orders ol")

        expect(lists).to_have_count(2)
        decisive = lists.nth(1).locator(".decides")
        expect(decisive).to_have_text(
            ["all_reduce SUM, group secondtest_ddp.py:12", "all_reduce SUM, group firsttest_ddp.py:13"]
        )

    def test_where_ranks_have_other_numbers_is_marked(self, visit, proven):
        page = visit().open(proven, "#test=3")
        lists = page.locator(".orders ol")

        expect(lists).to_have_count(2)
        expect(lists.nth(0).get_by_role("img", name="the same on all ranks", exact=True)).to_have_text("=")
        expect(
            lists.nth(1).locator(".decides").get_by_role("img", name="not the same on all ranks")
        ).to_have_text("≠")

    def test_a_deadlock_is_a_graph_and_a_list(self, visit, proven):
        page = visit().open(proven, "#test=2")
        graph = page.locator("svg.graph")

        expect(graph.locator(".node")).to_have_count(4)
        expect(graph.locator(".finished text")).to_have_text("2")
        expect(graph.locator(".waits-for")).to_have_count(4)
        expect(page.locator(".waits li")).to_have_text(
            [
                "rank 0 waits in recv #1 from rank 1 at test_ddp.py:33 (1.5 s) for rank 1",
                "rank 1 waits in all_reduce #3 of group default (1.0 s) for rank 0, rank 2",
                "rank 3 waits in barrier #1 of group default (0 s) for rank 2, which has finished the test",
            ]
        )

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("number", [0, 2])
    def test_nothing_is_wider_than_a_phone(self, visit, proven, scheme, number):
        page = visit(width=360, scheme=scheme).open(proven, f"#test={number}")

        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator("#test").evaluate("sheet => sheet.scrollWidth <= sheet.clientWidth")


class TestHostileText:
    def test_names_and_messages_stay_text(self, visit, tmp_path):
        hostile = (
            "<script>alert(1)</script><img src=x onerror=alert(2)>\"'--></script><!--<script </script x "
        )
        sample = SampleRun()
        case = {"nodeid": f"tests/x.py::t[{hostile}]", "suite": hostile, "name": hostile}
        sample.test(
            Outcome.FAILED, message=hostile, details=hostile, case=case, ranks=(rank(0, message=hostile),)
        )
        sample.test(Outcome.SKIPPED, name="test_skip", message=hostile)
        sample.collection_error(hostile, hostile)
        sample.note(hostile)
        write_reports(sample.finish(3, hostile), tmp_path)
        page = visit().open(tmp_path / "report.html", "#test=0")

        expect(page.get_by_role("dialog").locator(".finding")).to_have_text(hostile)
        assert page.evaluate("document.querySelectorAll('script').length") == 3
        assert page.evaluate("document.querySelectorAll('img').length") == 0

    @pytest.mark.parametrize("name", ["اختبار_الجمع_على_كل_الرتب", "test_🔥🏖️", "x" * 5000])
    def test_names_in_any_script_and_of_any_length_do_not_break_the_page(self, visit, tmp_path, name):
        sample = SampleRun()
        sample.test(Outcome.FAILED, name=name, message=name)
        write_reports(sample.finish(), tmp_path)
        page = visit(width=360).open(tmp_path / "report.html", "#test=0")

        expect(page.locator("#test-title")).to_contain_text(name[:50])
        assert page.evaluate("document.documentElement.scrollWidth") <= 360

    def test_a_run_of_nothing(self, visit, tmp_path):
        write_reports(SampleRun().finish(5), tmp_path)
        page = visit().open(tmp_path / "report.html")

        expect(page.locator("#results")).to_contain_text("No test was collected.")
        expect(page.locator("#timeline")).to_contain_text("Nothing ran long enough to be drawn.")


class TestHistory:
    def test_trend_and_past_of_a_test(self, visit, ten_runs):
        page = visit().open(ten_runs)

        expect(page.locator("#trend tbody tr")).to_have_count(10)
        expect(page.locator("#trend polyline")).to_have_count(3)
        page.locator("#list").get_by_role("button", name=re.compile("test_now_and_then")).click()
        expect(page.locator(".squares i")).to_have_count(9)
        expect(page.get_by_role("img", name=re.compile("^failed, passed, passed, failed"))).to_be_visible()


class TestManyTests:
    def test_a_piece_at_a_time(self, visit, many):
        page = visit().open(many)
        rows = page.locator("#list tbody tr")
        expect(page.locator("#shown")).to_contain_text("5,000 of 5,000 tests")
        expect(rows).to_have_count(200)
        page.get_by_role("button", name="Show 200 more").click()
        expect(rows).to_have_count(400)
        page.get_by_label("Name or message").fill("4850")
        expect(rows).to_have_count(1)

    def test_the_file_is_small(self, many):
        assert many.stat().st_size < 5_000_000


class TestForEverybody:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("opened", [False, True])
    @pytest.mark.parametrize("which", ["mixed", "red", "green", "ten_runs"])
    def test_axe_has_nothing_serious_to_say(self, visit, axe, request, which, scheme, opened):
        page = visit(scheme=scheme).open(request.getfixturevalue(which), "#test=0" if opened else "")
        page.evaluate(axe)
        found = page.evaluate("axe.run()")["violations"]
        serious = [
            (rule["id"], rule["nodes"][0]["html"])
            for rule in found
            if rule["impact"] in ("serious", "critical")
        ]

        assert serious == []

    @pytest.mark.parametrize("which", ["mixed", "red", "ten_runs"])
    def test_a_phone_shows_all_without_scrolling_sideways(self, visit, request, which):
        page = visit(width=360).open(request.getfixturevalue(which))
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.locator("[data-open]").first.click()
        assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 360

    @pytest.mark.parametrize("bound_s", [5, 7, 8, 9])
    def test_no_line_of_the_timeline_crosses_a_word(self, visit, tmp_path, bound_s):
        """On a phone the lower bound stands where the words of the makespan are, or the name of a test."""
        sample = SampleRun(slots=1)
        sample.test(name="test_with_a_name", seconds=float(bound_s), size=1, slots=("cpu:0",), at_s=EPOCH_S)
        sample.test(name="test_late", seconds=0.1, size=1, slots=("cpu:0",), at_s=EPOCH_S + 9.9)
        (tmp_path / "report.html").write_text(render_html(sample.finish(), tmp_path))
        one = visit(width=360)
        one.page.add_init_script(RECORD_CANVAS)
        page = one.open(tmp_path / "report.html")
        assert "makespan 10.0 s" not in page.evaluate("drawn.filter(one => one.text).map(one => one.text)")
        page.locator("#schedule summary").click()
        page.wait_for_function("drawn.some(one => one.text === 'makespan 10.0 s')")

        words = page.evaluate("drawn.filter(one => one.text).map(one => one.text)")
        assert "makespan 10.0 s" in words
        assert any(word.startswith("test_") for word in words)
        assert page.evaluate("crossedOut()") == []
        ends = page.evaluate("drawn.filter(one => one.text).map(one => one.x + one.wide)")
        assert max(ends) <= page.locator("#timeline canvas").bounding_box()["width"]

    def test_the_theme_follows_the_system_and_can_be_changed(self, visit, mixed):
        page = visit(scheme="dark").open(mixed)
        background = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(background) == "rgb(13, 17, 23)"
        page.get_by_role("button", name="Dark").click()
        assert page.evaluate(background) == "rgb(255, 255, 255)"

    def test_tab_reaches_everything_in_order_and_is_never_trapped(self, visit, mixed):
        page = visit().open(mixed)
        seen = []
        for _ in range(200):
            page.keyboard.press("Tab")
            where = page.evaluate(
                "(e => e.id || e.textContent.trim().slice(0, 30) || e.tagName)(document.activeElement)"
            )
            seen.append(where)
            if where == "BODY" or document_wrapped(seen):
                break

        order = [seen.index(name) for name in ("Skip to the results", "Failures", "theme", "chart", "f-text")]
        assert order == sorted(order)

    def test_the_sheet_is_a_dialog_that_gives_the_focus_back(self, visit, mixed):
        page = visit().open(mixed)
        button = page.locator("#failures [data-open]").first
        button.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Close")).to_be_focused()
        page.keyboard.press("Escape")
        expect(button).to_be_focused()

    def test_without_a_script_the_findings_are_there(self, browser, mixed):
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(f"file://{mixed}")
        expect(page.locator("#failures")).to_contain_text("rank 1 failed: assert tensor(1.) == 3")
        expect(page.locator("#results tbody tr")).to_have_count(7)
        context.close()

    def test_prints_findings_and_results_without_the_controls(self, visit, mixed):
        page = visit().open(mixed)
        page.emulate_media(media="print")

        expect(page.locator(".filters")).to_be_hidden()
        expect(page.locator("#failures .finding").nth(1)).to_be_visible()
        assert len(page.pdf()) > 10_000


def document_wrapped(seen: list[str]) -> bool:
    return len(seen) > 1 and seen[-1] == seen[0]


_LABELS = """lanes => {
    const range = document.createRange();
    const boxOf = (part) => (range.selectNodeContents(part), range.getBoundingClientRect());
    const labels = [...lanes.querySelectorAll(".track span")].map((part) => (
        { text: part.textContent, box: boxOf(part), part: part.getBoundingClientRect() }
    ));
    const shown = labels.filter(({ box, part }) => box.top < part.bottom - 1);
    const ticks = [...lanes.querySelectorAll(".tick")].map((tick) => tick.getBoundingClientRect());
    const overlaps = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom - 1 && b.top < a.bottom - 1;
    const textOf = ({ text }) => text;
    return [
        shown.map(textOf),
        shown.filter(({ box, part }) => box.right > part.right + 1).map(textOf),
        shown.filter(({ box }) => ticks.some((tick) => overlaps(box, tick))).map(textOf),
    ];
}"""
"""The labels that are seen; those of them that are cut; and those that a mark of a collective lies over."""
