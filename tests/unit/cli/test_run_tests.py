"""What a run refuses before anything of it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from planning_cases import case

from disttest.cli.main import command
from disttest.cli.run_request import PreparedRun
from disttest.cli.run_tests import end_late
from disttest.errors import SchedulerError, UsageError
from disttest.extras.cluster.place import Nodes
from disttest.extras.shards.shard_plan import encode_plan, plan_equal_shards
from disttest.planning.timings import Timings
from disttest.plugins.masking.masker import Masker
from disttest.results.earlier_runs import IGNORED
from disttest.results.fold import RunResult
from disttest.results.journal import FILE_NAME, read_events


@pytest.mark.parametrize(
    "flags", [("--spmd", "2"), ("--debugpy", "5678"), ("--debug-rank", "1"), ("--setup", "prepare.sh")]
)
def test_what_needs_this_machine_does_not_go_to_nodes(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("disttest.cli.run_tests.hold_signals", lambda: None)
    monkeypatch.setattr("disttest.plugins.masking.masker.masker", Masker())
    (tmp_path / "prepare.sh").touch()

    ended = CliRunner().invoke(command, ["run", "smoke", "--launcher", "local", *flags], obj=[])

    assert isinstance(ended.exception, UsageError)
    assert str(ended.exception).startswith(flags[0])
    assert "one machine" in str(ended.exception)


@pytest.mark.parametrize("has_earlier_results", [True, False])
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_shard_that_a_scheduler_refuses_can_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool, has_earlier_results: bool
) -> None:
    results, plan = tmp_path / "results", tmp_path / "plan.json"
    plan.write_bytes(encode_plan(plan_equal_shards([case("a")], Timings(), shards=1)))
    if has_earlier_results:
        results.mkdir()
        (results / FILE_NAME).write_text('{"event":"before"}')

    def refuse(_place: Nodes, prepared: PreparedRun) -> RunResult:
        if has_begun:
            (prepared.directory.path / FILE_NAME).touch()
        raise SchedulerError("no such partition")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("disttest.cli.run_tests.hold_signals", lambda: None)
    monkeypatch.setattr("disttest.plugins.masking.masker.masker", Masker())
    monkeypatch.setattr(Nodes, "run", refuse)
    asked = ["run", "smoke", "--launcher", "local", "--plan", str(plan), "--shard", "1"]

    ended = CliRunner().invoke(command, asked, obj=[])

    assert "no such partition" == str(ended.exception)

    left = {path.name for path in results.iterdir()} - {IGNORED}
    if has_begun:
        assert {FILE_NAME, "plan.json"} == left
    elif has_earlier_results:
        assert '{"event":"before"}' == (results / FILE_NAME).read_text()
        assert ({FILE_NAME}, [plan, results]) == (left, sorted(tmp_path.iterdir()))
    else:
        assert set() == left


@pytest.mark.parametrize(
    ("code", "signum", "expected"),
    [(0, None, 0), (1, None, 1), (0, 15, 143), (1, 2, 130), (143, 2, 143), (130, 15, 130)],
)
def test_the_first_signal_decides_the_exit_code_in_the_journal_too(
    tmp_path: Path, code: int, signum: int | None, expected: int
) -> None:
    journal = tmp_path / "events.jsonl"
    journal.touch()

    assert expected == end_late(code, signum, journal, at_s=1.0)

    assert ((expected,) if expected != code else ()) == tuple(
        event.exit_code for event in read_events(journal)
    )
