"""The JUnit file: what it says, what the package would get wrong, and who has to be able to read it."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import junitparser
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from sample_runs import SampleRun, mixed_run, rank, write_log

from disttest.model import Cause, Invocation, Outcome, RankEnd
from disttest.reports import junit, junit_case
from disttest.reports.junit import render_junit

SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).parents[2] / "support" / "junit-xunit2.xsd"))


def parse(xml: str) -> ElementTree.Element:
    document = etree.fromstring(xml.encode())
    SCHEMA.assertValid(document)
    return ElementTree.fromstring(xml)


def only_case(sample: SampleRun, results_dir: Path | None = None) -> ElementTree.Element:
    (case,) = parse(render_junit(sample.finish(), results_dir)).iter("testcase")
    return case


def verdict_of(case: ElementTree.Element) -> ElementTree.Element:
    (verdict,) = [child for child in case if child.tag in ("failure", "error", "skipped")]
    return verdict


class TestWhatItSays:
    def test_counts_suites_and_validates(self, tmp_path):
        document = parse(render_junit(mixed_run(tmp_path), tmp_path))

        assert [suite.get("name") for suite in document] == ["ddp", "collectives", "unit", "collection"]
        assert (document.get("tests"), document.get("failures"), document.get("errors")) == ("15", "1", "5")
        assert [suite.get("skipped") for suite in document] == ["0", "4", "0", "0"]

    def test_a_case_has_names_time_file_and_line(self):
        sample = SampleRun()
        sample.test(size=4, seconds=1.23456)
        case = only_case(sample)

        assert dict(case.attrib) == {
            "classname": "tests.test_ddp",
            "name": "test_sum[4xgloo]",
            "time": "1.235",
            "file": "tests/test_ddp.py",
            "line": "12",
        }

    def test_failure_leads_with_the_finding_and_names_culprit_and_victims(self, tmp_path):
        document = parse(render_junit(mixed_run(tmp_path), tmp_path))
        failure = document.find(".//failure")

        assert failure.get("message") == "rank 1 failed: assert tensor(1.) == 3"
        assert failure.text.startswith("rank 1 failed: assert tensor(1.) == 3\n\nphase: call")
        assert "culprit: rank 1  victims: rank 0" in failure.text
        assert "E       assert tensor(1.) == 3" in failure.text

    @pytest.mark.parametrize(
        ("fields", "kind"),
        [
            ({"cause": Cause.INFRASTRUCTURE}, "infrastructure"),
            ({"culprit": 0, "ranks": (rank(0, None, end=RankEnd.SIGNALLED, signal=11),)}, "crashed"),
            ({"culprit": 0, "ranks": (rank(0, None, end=RankEnd.EXITED, exit_code=0),)}, "crashed"),
            ({"culprit": 0, "ranks": (rank(0, None, end=RankEnd.LOST),)}, "crashed"),
            ({"ranks": (rank(0, None, end=RankEnd.KILLED, hung=True),)}, "timed out"),
            ({"phase": "setup"}, "error"),
        ],
    )
    def test_error_type_says_what_kind(self, fields, kind):
        sample = SampleRun()
        sample.test(Outcome.ERROR, message="bad", **fields)

        assert verdict_of(only_case(sample)).get("type") == kind

    def test_skips_and_expected_failures_are_skipped_with_their_reason(self):
        sample = SampleRun()
        sample.test(Outcome.SKIPPED, message="needs 2 GPUs")
        sample.test(Outcome.XFAILED, name="test_bug", message="issue 42")
        sample.test(Outcome.XPASSED, name="test_fixed")
        skip, xfail, xpass = parse(render_junit(sample.finish())).iter("testcase")

        assert dict(verdict_of(skip).attrib) == {"type": "pytest.skip", "message": "needs 2 GPUs"}
        assert dict(verdict_of(xfail).attrib) == {
            "type": "pytest.xfail",
            "message": "expected failure: issue 42",
        }
        assert [child.tag for child in xpass] == ["system-out"]

    def test_the_last_attempt_decides_and_the_first_stays_visible(self):
        sample = SampleRun()
        sample.test(attempts=[{"outcome": Outcome.FAILED, "message": "connection reset"}])
        case = only_case(sample)

        assert [child.tag for child in case] == ["properties", "flakyFailure", "system-out"]
        assert case.find("flakyFailure").get("message") == "connection reset"
        facts = {fact.get("name"): fact.get("value") for fact in case.find("properties")}
        assert facts == {"disttest.attempts": "2", "disttest.flaky": "true"}
        assert "attempt 1: failed: connection reset" in case.findtext("system-out")

    def test_attempts_that_all_failed_are_reruns_of_a_failure(self):
        sample = SampleRun()
        sample.test(
            Outcome.FAILED, message="again", attempts=[{"outcome": Outcome.ERROR, "message": "rank 1 died"}]
        )
        case = only_case(sample)

        assert [child.tag for child in case] == ["properties", "failure", "rerunError", "system-out"]
        assert "rank 1 died" in case.findtext("rerunError/stackTrace")

    def test_a_flaky_test_fails_where_the_run_says_so(self):
        sample = SampleRun(invocation=Invocation(options={"flaky": "fail"}))
        sample.test(attempts=[{"outcome": Outcome.FAILED, "message": "connection reset"}])

        verdict = verdict_of(only_case(sample))

        assert "failure" == verdict.tag
        assert "flaky: passed at attempt 2; attempt 1: connection reset" == verdict.get("message")
        assert "flaky" == verdict.get("type")

    def test_what_did_not_finish_is_an_error(self):
        sample = SampleRun()
        nodeid = sample.test()
        sample.events = [
            event for event in sample.events if type(event).__name__ not in ("TestFinished", "TestStarted")
        ]
        case = only_case(sample)

        assert nodeid.endswith(case.get("name"))
        assert "did not finish: it had not started" in verdict_of(case).get("message")

    def test_a_file_that_could_not_be_collected_is_an_error(self):
        sample = SampleRun()
        sample.collection_error(
            "tests/test_broken.py", "line 3\nE   ModuleNotFoundError: No module named 'x'"
        )
        case = only_case(sample)
        error = verdict_of(case)

        assert case.get("name") == "tests/test_broken.py"
        assert error.get("type") == "collection"
        assert error.get("message") == "could not be collected: E ModuleNotFoundError: No module named 'x'"
        assert error.text.startswith("line 3")

    def test_a_rank_that_says_more_than_the_verdict_gets_a_section(self):
        sample = SampleRun()
        ranks = (
            rank(0, message="known"),
            rank(1, Outcome.FAILED, phase="teardown", message="and this", stacks="File x"),
        )
        sample.test(Outcome.FAILED, message="known", ranks=ranks)

        text = verdict_of(only_case(sample)).text
        assert "----- rank 1: failed in teardown -----\nand this\nFile x" in text
        assert "----- rank 0" not in text

    def test_file_is_left_out_when_it_can_not_be_shown_beside_the_code(self, tmp_path):
        (tmp_path / "here.py").touch()
        sample = SampleRun(root=str(tmp_path))
        for number, file in enumerate(("here.py", "gone.py", "/etc/passwd", "../up.py", "")):
            sample.test(name=f"test_{number}", case={"file": file})
        cases = parse(render_junit(sample.finish())).iter("testcase")

        assert [case.get("file") for case in cases] == ["here.py", None, None, None, None]


class TestDefectsOfThePackage:
    """Each of these is silently wrong when the package is used as it comes."""

    @pytest.mark.parametrize(("outcome", "tag"), [(Outcome.FAILED, "failure"), (Outcome.ERROR, "error")])
    @pytest.mark.parametrize("silence", ["", "  \n", "\x1b[31m\x1b[0m"])
    def test_a_failure_without_text_is_still_a_failure(self, outcome, tag, silence):
        sample = SampleRun()
        sample.test(outcome, message=silence, details=silence)
        verdict = verdict_of(only_case(sample))

        assert verdict.tag == tag
        assert verdict.get("message") == str(outcome)

    @pytest.mark.parametrize("seconds", [0.0, -3.0, 1e-9, float("nan"), float("inf")])
    def test_time_is_never_dropped(self, seconds):
        sample = SampleRun()
        sample.test(seconds=0.0)
        run = sample.finish()
        odd = msgspec.structs.replace(run.tests[0].final, duration_s=seconds)
        run = msgspec.structs.replace(run, tests=(msgspec.structs.replace(run.tests[0], attempts=(odd,)),))
        (case,) = parse(render_junit(run)).iter("testcase")

        assert case.get("time") == "0.001"

    def test_times_have_three_decimals_however_they_add_up(self):
        sample = SampleRun()
        for number, seconds in enumerate((0.1, 0.2, 0.0005)):
            sample.test(name=f"test_{number}", seconds=seconds)
        document = parse(render_junit(sample.finish()))

        assert document.get("time") == document[0].get("time") == "0.301"

    @pytest.mark.parametrize("rubbish", ["\ud800", "\udcff", "\x00", "\x08", "\x1b[31m", "\ufffe", "\x7f"])
    @pytest.mark.parametrize("where", ["message", "details"])
    def test_characters_that_xml_forbids_do_not_reach_the_file(self, rubbish, where):
        sample = SampleRun()
        sample.test(Outcome.FAILED, **{"message": "m", where: f"before{rubbish}after"})
        verdict = verdict_of(only_case(sample))

        shown = verdict.get("message") + verdict.text
        assert "before" in shown
        assert "after" in shown
        assert rubbish not in shown

    def test_names_with_forbidden_characters(self):
        sample = SampleRun()
        sample.test(case={"name": "test[\ud800\x00]", "classname": "\x1b[1mc", "suite": "\x00"})
        case = only_case(sample)

        assert (case.get("classname"), case.get("name")) == ("c", "test[\ufffd]")

    def test_equal_names_are_told_apart(self):
        sample = SampleRun()
        for number in range(3):
            sample.test(case={"nodeid": f"x::{number}"})
        cases = parse(render_junit(sample.finish())).iter("testcase")

        names = ["test_sum[2xgloo]", "test_sum[2xgloo] #2", "test_sum[2xgloo] #3"]
        assert [case.get("name") for case in cases] == names

    def test_no_attribute_that_the_dialect_does_not_know(self):
        sample = SampleRun()
        sample.test()
        document = parse(render_junit(sample.finish()))

        assert not [element for element in document.iter() if "disabled" in element.attrib]

    def test_cdata_end_and_markup_stay_text(self):
        sample = SampleRun()
        sample.test(Outcome.FAILED, message="]]><script>&amp;", details="]]> <b>")

        assert verdict_of(only_case(sample)).get("message") == "]]><script>&amp;"


class TestLogs:
    def sample(self, *logs: str, outcome: Outcome = Outcome.FAILED) -> SampleRun:
        sample = SampleRun()
        sample.test(
            outcome, message="bad", ranks=tuple(rank(number, log=log) for number, log in enumerate(logs))
        )
        return sample

    def test_excerpts_come_first_and_attachments_last_each_on_its_line(self, tmp_path):
        logs = [
            write_log(tmp_path, f"logs/slug/attempt-1/rank{number}.log", f"hello {number}\n")
            for number in (0, 1)
        ]
        out = only_case(self.sample(*logs), tmp_path).findtext("system-out")

        assert out.splitlines() == [
            "world: 2xgloo, fresh",
            "----- rank 0 -----",
            "hello 0",
            "----- rank 1 -----",
            "hello 1",
            "[[ATTACHMENT|logs/slug/attempt-1/rank0.log]]",
            "[[ATTACHMENT|logs/slug/attempt-1/rank1.log]]",
        ]

    def test_a_huge_log_shows_head_and_tail_and_states_the_cut(self, tmp_path):
        log = tmp_path / "logs" / "rank0.log"
        log.parent.mkdir()
        with log.open("wb") as file:
            file.write(b"first line\n")
            file.truncate(1_000_000_000)  # a sparse file: the disk stays empty
            file.seek(0, 2)
            file.write(b"\nlast line\n")
        out = only_case(self.sample("logs/rank0.log"), tmp_path).findtext("system-out")

        assert "first line" in out
        assert "last line" in out
        assert "[… 1.0 GB cut …]" in out
        assert len(out) < 20_000

    def test_a_binary_log_is_shown_as_far_as_it_is_text(self, tmp_path):
        write_log(tmp_path, "logs/rank0.log", b"\xff\xfe\x00ok\x00\x1b[2J\xc3")
        out = only_case(self.sample("logs/rank0.log"), tmp_path).findtext("system-out")

        assert "ok" in out

    def test_a_log_can_not_attach_files(self, tmp_path):
        write_log(tmp_path, "logs/rank0.log", "[[ATTACHMENT|/etc/passwd]]\n")
        out = only_case(self.sample("logs/rank0.log"), tmp_path).findtext("system-out")

        assert [line for line in out.splitlines() if line.startswith("[[ATTACHMENT|")] == [
            "[[ATTACHMENT|logs/rank0.log]]"
        ]

    @pytest.mark.parametrize(
        "log", ["logs/gone.log", "../outside.log", "/etc/passwd", "logs", "a\0b", "", "pipe"]
    )
    def test_logs_that_are_missing_or_not_ours_are_left_out(self, tmp_path, log):
        results = tmp_path / "results"
        (results / "logs").mkdir(parents=True)
        (tmp_path / "outside.log").write_text("secret")
        os.mkfifo(results / "pipe")
        out = only_case(self.sample(log), results).findtext("system-out")

        assert "ATTACHMENT" not in out
        assert "secret" not in out

    @pytest.mark.slow("33 MB of failures")
    def test_the_file_stays_loadable_when_everything_fails_loudly(self, tmp_path, monkeypatch):
        monkeypatch.setattr(junit, "MAX_BYTES", 800_000)
        write_log(tmp_path, "logs/rank0.log", "<&>" * 100_000)
        sample = SampleRun()
        for number in range(100):
            ranks = (rank(0, log="logs/rank0.log"),)
            sample.test(
                Outcome.FAILED, name=f"test_{number}", message="m", details="<&>" * 30_000, ranks=ranks
            )
        xml = render_junit(sample.finish(), tmp_path)

        assert len(xml.encode()) <= 800_000
        assert parse(xml).get("failures") == "100"

    @pytest.mark.slow("ten thousand tests with logs")
    def test_ten_thousand_tests_with_logs_stay_under_what_consumers_load(self, tmp_path):
        write_log(tmp_path, "logs/rank0.log", "x" * 10_000)
        sample = SampleRun()
        for number in range(10_000):
            sample.test(name=f"test_{number}", size=1, ranks=(rank(0, log="logs/rank0.log"),))

        assert len(render_junit(sample.finish(), tmp_path)) < 24_000_000


class TestALargeRun:
    """What is too large for those who load it says less of tests that passed, and says so."""

    @pytest.fixture
    def xml(self, tmp_path, monkeypatch):
        for module in (junit, junit_case):
            monkeypatch.setattr(module, "MAX_BYTES", 40_000)
        sample = SampleRun()
        for number in range(300):
            log = write_log(tmp_path, f"logs/{number}/rank0.log", "a line\n" * 100)
            outcome = Outcome.FAILED if number % 100 == 0 else Outcome.PASSED
            sample.test(outcome, name=f"test_{number}", message="bad", ranks=(rank(0, log=log),))
        return render_junit(sample.finish(), tmp_path)

    def test_tests_that_passed_are_a_line_and_failures_keep_their_logs(self, xml):
        document = parse(xml)
        attached = [case for case in document.iter("testcase") if "[[ATTACHMENT|" in "".join(case.itertext())]

        assert len([*document.iter("testcase")]) == 300
        assert [case.get("name") for case in attached] == [
            f"test_{number}[2xgloo]" for number in (0, 100, 200)
        ]
        assert document.attrib["tests"] == "300"
        assert document.attrib["failures"] == "3"

    def test_what_was_cut_is_stated(self, xml):
        (cut,) = [p for p in parse(xml).iter("property") if p.get("name") == "disttest.shortened"]

        assert cut.attrib["value"].startswith("left out to stay under 0 MB: most text of failures")
        assert "attachments of tests that passed" in cut.attrib["value"]

    def test_a_run_that_fits_states_nothing(self, tmp_path):
        assert "disttest.shortened" not in render_junit(mixed_run(tmp_path), tmp_path)

    def test_it_is_written_in_pieces(self, tmp_path):
        sample = SampleRun()
        for number in range(1000):
            sample.test(name=f"test_{number}")
        sizes = []

        class Pieces(BytesIO):
            def write(self, data):
                sizes.append(len(data))
                return super().write(data)

        junit.write_junit(sample.finish(), tmp_path, Pieces())

        assert len(sizes) > 1000
        assert max(sizes) < 2000


class TestConsumers:
    """The rules of the programs that load the file."""

    @pytest.fixture
    def xml(self, tmp_path):
        return render_junit(mixed_run(tmp_path), tmp_path)

    def test_junitparser_loads_it(self, xml):
        loaded = junitparser.JUnitXml.fromstring(xml.encode())
        results = {
            case.name: [type(entry).__name__ for entry in case.result] for suite in loaded for case in suite
        }

        assert results["test_all_reduce[2xgloo]"] == ["Failure"]
        assert results["test_hang[2xgloo]"] == ["Error"]
        assert results["test_nccl[2xgloo]"] == ["Skipped"]
        assert results["test_flaky[2xgloo]"] == []
        assert loaded.tests == 15

    def test_enricomi_reads_names_lines_and_results_and_no_text_node_is_too_big(self, xml):
        document = etree.fromstring(xml.encode())  # without huge_tree, as that action parses by default
        keys = [
            (case.get("file"), case.get("classname"), case.get("name")) for case in document.iter("testcase")
        ]

        assert len(set(keys)) == len(keys)  # equal keys would be merged as runs of one test
        assert all(int(case.get("line")) > 0 for case in document.iter("testcase") if case.get("line"))
        assert all(len(node.text or "") < 10_000_000 for node in document.iter())

    def test_mikepenz_counts_failures_and_finds_file_and_line(self, xml):
        document = ElementTree.fromstring(xml)
        failed = [
            case
            for case in document.iter("testcase")
            if case.find("failure") is not None or case.find("error") is not None
        ]

        # A case that is skipped as well would not count as failed; check_retries drops a failure that
        # has a passing namesake within its suite.
        assert not [case for case in failed if case.find("skipped") is not None]
        for suite in document:
            names = [case.get("name") for case in suite]
            assert len(set(names)) == len(names)
        assert all(case.get("file") and case.get("line") for case in failed)

    def test_dorny_needs_flat_suites_with_names_and_times(self, xml):
        document = ElementTree.fromstring(xml)

        assert document.tag == "testsuites"
        assert not document.findall(".//testsuite/testsuite")
        assert all(suite.get("name").strip() and float(suite.get("time")) > 0 for suite in document)
        assert all(
            case.get("name").strip() and float(case.get("time")) > 0 for case in document.iter("testcase")
        )

    def test_gitlab_keeps_the_first_of_two_equal_names_and_takes_attachments(self, xml):
        document = ElementTree.fromstring(xml)
        names = [
            (suite.get("name"), case.get("classname"), case.get("name"))
            for suite in document
            for case in suite
        ]

        assert len(set(names)) == len(names)
        assert len(xml.encode()) < 30_000_000

    def test_jenkins_finds_attachments_alone_on_their_line_and_relative_to_the_file(self, xml, tmp_path):
        document = ElementTree.fromstring(xml)
        out = [
            line
            for case in document.iter("testcase")
            for line in case.findtext("system-out", "").splitlines()
        ]
        attached = [line for line in out if "[[ATTACHMENT|" in line]

        assert len(attached) == 10
        for line in attached:
            assert line.startswith("[[ATTACHMENT|")
            assert line.endswith("]]")
            assert (tmp_path / line[13:-2]).is_file()


@given(st.text(), st.text(), st.text())
def test_any_text_gives_a_valid_file(name, message, details):
    sample = SampleRun()
    sample.test(Outcome.ERROR, message=message, details=details, case={"name": name, "suite": message})

    assert verdict_of(only_case(sample)).tag == "error"


def test_golden(golden, tmp_path):
    pretty = etree.tostring(
        etree.fromstring(render_junit(mixed_run(tmp_path), tmp_path).encode()), pretty_print=True
    )
    golden("junit.xml", pretty.decode())
