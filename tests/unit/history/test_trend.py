"""Several runs side by side, and the commands that read results back."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console
from sample_runs import SampleRun

from disttest.cli.commands import report
from disttest.errors import UsageError
from disttest.extras.history.command import trend
from disttest.extras.history.shown import points_of, print_trend, sparkline
from disttest.extras.history.sources import find_runs, load_run
from disttest.model import Cause, Outcome
from disttest.reports.past_runs import point
from disttest.reports.write import write_reports
from disttest.results.fold import RunResult
from disttest.results.journal import Journal


def run_of(number: int, *, flaky: int = 0, infra: int = 0) -> RunResult:
    sample = SampleRun()
    for index in range(10):
        attempts = [{"outcome": Outcome.FAILED, "message": "x"}] if index < flaky else []
        broken = index >= 10 - infra
        outcome = Outcome.ERROR if broken else Outcome.PASSED
        cause = Cause.INFRASTRUCTURE if broken else None
        sample.test(
            outcome, name=f"test_{index}", attempts=attempts, cause=cause, message="m" if broken else ""
        )
    sample.test(Outcome.SKIPPED, name="test_skipped", seconds=0.0)
    run = sample.finish()
    moved = {
        "started_at_s": run.started_at_s + 86_400 * number,
        "ended_at_s": run.ended_at_s + 86_401 * number,
    }
    return msgspec.structs.replace(run, run_id=f"run-{number}", **moved)


def saved(tmp_path: Path, *runs: RunResult) -> Path:
    for run in runs:
        folder = tmp_path / run.run_id
        folder.mkdir()
        write_reports(run, folder, ("json",))
    return tmp_path


class TestTrend:
    def test_rates_are_of_tests_that_ran(self):
        entry = point(run_of(0, flaky=2, infra=1))

        assert (entry.flake_rate, entry.infrastructure_rate) == (0.2, 0.1)
        assert (entry.tests, entry.bad, entry.green) == (11, 1, False)

    def test_oldest_first_whatever_the_order_given(self, tmp_path):
        saved(tmp_path, run_of(2), run_of(0), run_of(1))
        entries = points_of([tmp_path / "run-2", tmp_path / "run-0", tmp_path / "run-1"])

        assert [entry.run_id for entry in entries] == ["run-0", "run-1", "run-2"]

    def test_printed(self):
        console = Console(file=io.StringIO(), width=100)
        print_trend(console, [point(run_of(0)), point(run_of(1, flaky=1)), point(run_of(2, infra=2))])
        lines = console.file.getvalue().splitlines()

        assert re.split(r" {2,}", lines[1]) == [
            "2026-05-28 20:26",
            "run-0",
            "green",
            "11",
            "·",
            "5.0 s",
            "·",
            "·",
        ]
        assert [line.split()[-1] for line in lines[-2:]] == ["▁█▁", "▁▁█"]

    @pytest.mark.parametrize(("values", "line"), [([], ""), ([0, 0], "▁▁"), ([1, 2], "▅█"), ([5], "█")])
    def test_sparkline(self, values, line):
        assert sparkline(values) == line


class TestLoadRun:
    def test_from_the_journal_where_results_json_is_cut(self, tmp_path):
        run = run_of(0)
        folder = saved(tmp_path, run) / "run-0"
        whole = (folder / "results.json").read_bytes()
        (folder / "results.json").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(UsageError, match=r"cannot be read, and there is no events\.jsonl beside it"):
            load_run(folder)
        sample = SampleRun()
        sample.test()
        journal = Journal(folder / "events.jsonl")
        for event in sample.events:
            journal.append(event)
        journal.close()

        assert len(load_run(folder).tests) == 1

    def test_nothing_there_is_a_clear_error(self, tmp_path):
        with pytest.raises(
            UsageError, match=r"no run in .*: neither results\.json nor events\.jsonl is there"
        ):
            load_run(tmp_path)
        with pytest.raises(UsageError, match="or below it"):
            find_runs(tmp_path)


class TestCommands:
    def test_trend_takes_a_folder_of_runs(self, tmp_path):
        saved(tmp_path, run_of(0), run_of(1))
        ended = CliRunner().invoke(trend, [str(tmp_path)])

        assert ended.exit_code == 0, ended.output
        assert "run-0" in ended.output
        assert "run-1" in ended.output

    def test_report_writes_what_was_asked_for(self, tmp_path):
        sample = SampleRun()
        sample.test()
        journal = Journal(tmp_path / "events.jsonl")
        for event in sample.events:
            journal.append(event)
        journal.close()
        earlier = saved(tmp_path, run_of(0)) / "run-0"
        ended = CliRunner().invoke(report, [str(tmp_path), "--format", "html", "--history", str(earlier)])

        assert ended.output == f"wrote {tmp_path / 'report.html'}\n"
        assert '<section id="trend"' in (tmp_path / "report.html").read_text()

    def test_report_without_a_folder_is_a_clear_error(self, tmp_path):
        ended = CliRunner().invoke(report, [str(tmp_path / "gone")])

        assert isinstance(ended.exception, UsageError)
        assert "give the one that the run wrote into" in str(ended.exception)
