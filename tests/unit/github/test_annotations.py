"""Annotations: which, how many, beside which line, and nothing a test prints can forge one."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import ASSERTION, STACKS, SampleRun, mixed_run, rank

from disttest.model import Cause, Invocation, Outcome, RankEnd
from disttest.plugins.ctrf.report import ctrf_pieces
from disttest.plugins.github import commands
from disttest.plugins.github.annotations import render_annotations
from disttest.reports.junit import render_junit
from disttest.reports.location import Repository, locate, source_line


def lines_of(sample: SampleRun) -> list[str]:
    return render_annotations(sample.finish()).splitlines()


def place_of(sample: SampleRun) -> str:
    run = sample.finish()
    return str(locate(run.tests[0], Repository.of(run)))


class TestSource:
    @pytest.mark.parametrize(
        ("details", "code"),
        [
            (ASSERTION, "assert x[0] == 3"),
            (
                "tests/a.py:3: in test_x\n    helper()\ntests/b.py:7: in helper\n    dist.barrier()\n",
                "dist.barrier()",
            ),
            (f"{ASSERTION}\n/opt/venv/site-packages/torch/x.py:5: RuntimeError", "assert x[0] == 3"),
            ("no traceback", ""),
            ("tests/a.py:3: in test_x", ""),
            ('  File "tests/a.py", line 3, in test_x\n    helper()\n', "helper()"),
            ('  File "tests/a.py", line 3, in test_x\n', ""),
            ('  File "tests/a.py", line 3, in f\n  File "tests/b.py", line 4, in g\n    boom()\n', "boom()"),
        ],
    )
    def test_the_line_of_the_place_is_found_in_the_traceback(self, details, code):
        sample = SampleRun()
        sample.test(Outcome.FAILED, message="m", details=details)
        run = sample.finish()

        assert code == source_line(run.tests[0], Repository.of(run))

    def test_a_hang_shows_the_line_that_its_stacks_have(self):
        stacks = (
            'Current thread (most recent call first):\n  File "/venv/site-packages/torch/x.py", line 9 in barrier\n'
            '  File "/nowhere/repo/tests/a.py", line 3 in test_x\n    dist.barrier()\n'
            '  File "/nowhere/repo/tests/a.py", line 9 in main'
        )
        sample = SampleRun()
        sample.test(
            Outcome.FAILED, culprit=1, message="m", ranks=(rank(0), rank(1, hung=True, stacks=stacks))
        )
        run = sample.finish()

        assert "dist.barrier()" == source_line(run.tests[0], Repository.of(run))

    def test_where_the_culprit_has_finished_it_is_the_line_of_those_that_wait_for_it(self):
        stacks = (
            'Current thread (most recent call first):\n  File "/nowhere/repo/tests/a.py", line 3 in test_x\n'
        )
        sample = SampleRun()
        waits = rank(0, hung=True, stacks=stacks)
        sample.test(Outcome.FAILED, culprit=1, message="m", ranks=(waits, rank(1, outcome=Outcome.PASSED)))

        assert "tests/a.py:3" == place_of(sample)


class TestWhich:
    def test_a_failure_stands_at_its_failing_line_with_its_finding_first(self):
        lines = render_annotations(mixed_run()).splitlines()

        assert lines[1] == (
            "::error title=test_all_reduce[2xgloo],file=tests/test_ddp.py,line=19::"
            "rank 1 failed: assert tensor(1.) == 3%0Arank 1 is the culprit; victim: rank 0%0A"
            "repeat: disttest run 'tests/test_ddp.py::test_all_reduce[2xgloo]' --world-sizes 2 --backend gloo --device cpu"
        )

    def test_a_broken_machine_is_one_annotation_without_a_line(self):
        lines = [line for line in render_annotations(mixed_run()).splitlines() if "infrastructure" in line]

        assert len(lines) == 1
        assert lines[0].startswith(
            "::error title=infrastructure%3A 2 tests failed alike::GPU 3".replace(", ", "%2C ")
        )

    def test_nine_and_one_that_counts_the_rest(self):
        sample = SampleRun()
        for number in range(25):
            sample.test(Outcome.FAILED, name=f"test_{number}", message="bad")
        lines = lines_of(sample)

        assert len(lines) == 10
        assert (
            lines[-1]
            == "::error title=16 more failures::16 more failures: see the summary, report.html or junit.xml"
        )

    def test_ten_are_shown_as_they_are(self):
        sample = SampleRun()
        for number in range(10):
            sample.test(Outcome.FAILED, name=f"test_{number}", message="bad")

        assert [line for line in lines_of(sample) if "more failure" in line] == []

    def test_flaky_tests_and_leaks_are_warnings(self):
        sample = SampleRun()
        place = "file=tests/test_ddp.py,line=12"
        sample.test(attempts=[{"outcome": Outcome.FAILED, "message": "reset"}])
        sample.test(
            name="test_leak", ranks=(rank(0, leaks=("env FOO",)), rank(1, leaks=("env FOO", "thread x")))
        )

        assert lines_of(sample) == [
            f"::warning title=test_sum[2xgloo] is flaky,{place}::passed at attempt 2; attempt 1: reset",
            f"::warning title=test_leak[2xgloo] leaks,{place}::left behind: env FOO, thread x",
        ]

    def test_a_run_that_died_is_told(self):
        run = SampleRun().finish(3, "killed by SIGKILL")

        assert render_annotations(run).splitlines() == [
            "::error title=disttest%3A the run is red::killed by SIGKILL"
        ]

    def test_green_says_nothing(self):
        sample = SampleRun()
        sample.test()

        assert render_annotations(sample.finish()) == ""


class TestWhere:
    def test_a_hang_stands_where_the_rank_waited(self):
        sample = SampleRun()
        sample.test(
            Outcome.FAILED,
            message="hung",
            ranks=(rank(0), rank(1, None, end=RankEnd.KILLED, hung=True, stacks=STACKS)),
        )

        assert place_of(sample) == "tests/test_ddp.py:33"

    def test_the_thread_that_runs_the_test_comes_first(self):
        stacks = (
            'Thread 0x1 (most recent call first):\n  File "/nowhere/repo/lib/watch.py", line 5 in loop\n'
            'Thread 0x2 (most recent call first):\n  File "/nowhere/repo/lib/net.py", line 7 in send\n'
            '  File "/nowhere/repo/tests/test_ddp.py", line 9 in test_x\n'
        )
        sample = SampleRun()
        sample.test(
            Outcome.FAILED, message="hung", culprit=0, ranks=(rank(0, None, hung=True, stacks=stacks),)
        )

        assert place_of(sample) == "lib/net.py:7"

    def test_the_layer_that_observes_is_not_where_a_rank_was_even_below_the_users_repository(self):
        stacks = (
            'Thread 0x2 (most recent call first):\n  File "/nowhere/repo/src/disttest/observe/patches.py", line 141 in method\n'
            '  File "/nowhere/repo/tests/test_ddp.py", line 9 in test_x\n'
        )
        sample = SampleRun()
        sample.test(
            Outcome.FAILED, message="hung", culprit=0, ranks=(rank(0, None, hung=True, stacks=stacks),)
        )

        assert place_of(sample) == "tests/test_ddp.py:9"

    @pytest.mark.parametrize("file", ["<string>", "<frozen runpy>"])
    def test_code_without_a_file_is_no_place(self, file):
        stacks = f'Current thread (most recent call first):\n  File "{file}", line 1 in <module>\n'
        sample = SampleRun(invocation=Invocation(cwd="/nowhere/repo"))
        sample.test(
            Outcome.FAILED, message="hung", culprit=0, ranks=(rank(0, None, hung=True, stacks=stacks),)
        )

        assert place_of(sample) == "tests/test_ddp.py:12"

    def test_a_python_traceback_is_read_from_its_end(self):
        frames = ('"/nowhere/repo/tests/test_ddp.py", line 4, in test', '"/opt/torch.py", line 1, in f')
        details = "".join(f"  File {frame}\n" for frame in frames)
        sample = SampleRun()
        sample.test(Outcome.FAILED, message="x", details=details)

        assert place_of(sample) == "tests/test_ddp.py:4"

    def test_without_a_trace_it_is_the_test(self):
        sample = SampleRun()
        sample.test(Outcome.FAILED, message="x")

        assert place_of(sample) == "tests/test_ddp.py:12"

    def test_paths_of_a_container_are_mapped_to_the_workspace(self):
        sample = SampleRun(root="/src/python", invocation=Invocation(workspace="/src"))
        sample.test(Outcome.FAILED, message="x", details=ASSERTION)

        assert place_of(sample) == "python/tests/test_ddp.py:19"

    @pytest.mark.parametrize(("details", "line"), [("test_ddp.py:19: AssertionError", 19), ("", 12)])
    def test_a_run_in_a_folder_below_its_root_and_the_root_in_the_workspace(self, details, line):
        """Tracebacks are relative to where the run was started, files of tests to pytest's root, GitHub's to its workspace."""
        asked = Invocation(cwd="/src/python/tests", workspace="/src")
        sample = SampleRun(root="/src/python", invocation=asked)
        sample.test(Outcome.FAILED, message="x", details=details, case={"file": "tests/test_ddp.py"})
        run = sample.finish()

        assert f"file=python/tests/test_ddp.py,line={line}::" in lines_of(sample)[0]
        (case,) = ET.fromstring(render_junit(run)).iter("testcase")
        assert case.get("file") == "python/tests/test_ddp.py"
        shown = json.loads(b"".join(ctrf_pieces(run)))["results"]["tests"]
        assert [test["filePath"] for test in shown] == ["python/tests/test_ddp.py"]

    def test_what_is_outside_of_the_workspace_has_no_place_in_it(self):
        sample = SampleRun(root="/opt/suites", invocation=Invocation(workspace="/src"))
        sample.test(Outcome.FAILED, message="x", case={"file": "tests/test_ddp.py"})

        assert "file=" not in lines_of(sample)[0]

    @pytest.mark.parametrize(
        "file", ["/etc/passwd", "../other/x.py", ".venv/lib/x.py", "a/site-packages/x.py"]
    )
    def test_files_that_are_not_the_users_are_never_named(self, file):
        sample = SampleRun()
        sample.test(Outcome.FAILED, message="x", details=f"{file}:3: Error", case={"file": file})

        assert place_of(sample) == "None"


class TestProblemMatcher:
    @pytest.mark.parametrize(
        ("line", "groups"),
        [
            ("tests/test_x.py:3: error: rank 1 failed", ("tests/test_x.py", "3", "error", "rank 1 failed")),
            ("tests/test_x.py:3: warning: flaky", ("tests/test_x.py", "3", "warning", "flaky")),
            ("FAILED tests/test_x.py::test", None),
        ],
    )
    def test_reads_the_lines_of_our_logs(self, line, groups):
        matcher = json.loads(files("disttest.reports").joinpath("problem-matcher.json").read_text())
        (pattern,) = matcher["problemMatcher"][0]["pattern"]
        match = re.match(pattern["regexp"], line)

        assert (match and match.groups()) == groups


class TestGithub:
    def test_percent_is_escaped_first_and_properties_more_than_data(self):
        assert (
            commands.command("error", "100%\r\n::x", title="a:b,c%")
            == "::error title=a%3Ab%2Cc%25::100%25%0D%0A::x"
        )

    def test_long_messages_are_cut_visibly(self):
        line = commands.annotation("error", "x" * 5000)

        assert line == "::error::" + "x" * 4095 + "…"

    def test_a_line_without_a_file_means_nothing(self):
        assert commands.annotation("warning", "m", line=3) == "::warning::m"

    @pytest.mark.slow("hypothesis draws many examples")
    @given(st.text(), st.text())
    def test_no_text_leaves_its_line(self, message, title):
        assert len(commands.annotation("error", message, title=title).split("\n")) == 1

    def test_an_output_can_not_end_itself_early(self, tmp_path):
        path = tmp_path / "output"
        commands.write_output(path, "report-path", "a\nend\nb")
        name, delimiter = path.read_text().splitlines()[0].split("<<")

        assert name == "report-path"
        assert path.read_text() == f"report-path<<{delimiter}\na\nend\nb\n{delimiter}\n"

    @pytest.mark.parametrize("name", ["", "a=b", "a\nb", "a<<b"])
    def test_the_name_of_an_output_is_checked(self, tmp_path, name):
        with pytest.raises(ValueError, match="not the name of an output"):
            commands.write_output(tmp_path / "output", name, "x")

    def test_a_summary_that_would_not_fit_is_not_written(self, tmp_path):
        path = tmp_path / "summary"
        assert commands.append_summary(path, "a" * 1_000_000)
        assert not commands.append_summary(path, "b" * 100_000)
        assert "b" not in path.read_text()

    def test_groups(self):
        assert (commands.group("a\nb"), commands.end_group()) == ("::group::a b", "::endgroup::")


def test_cause_decides_the_line_not_the_outcome():
    sample = SampleRun()
    sample.test(Outcome.FAILED, message="x", cause=Cause.INFRASTRUCTURE)

    assert "file=" not in lines_of(sample)[0]


@pytest.mark.parametrize(("root", "top"), [("disk/r", "work/r"), ("work/r", "disk/r")])
def test_a_workspace_that_is_a_link_has_the_files_of_its_real_path(
    tmp_path: Path, root: str, top: str
) -> None:
    (tmp_path / "disk/r").mkdir(parents=True)
    (tmp_path / "work").symlink_to("disk")
    repository = Repository(root=str(tmp_path / root), top=str(tmp_path / top), cwd=str(tmp_path / root))

    assert "tests/test_x.py" == repository.relative("tests/test_x.py")
    assert "tests/lib.py" == repository.traced("tests/lib.py")
    assert repository.relative(str(tmp_path / "elsewhere.py")) is None
