"""What a run refuses before anything of it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from disttest.cli.main import command
from disttest.cli.run_tests import end_late
from disttest.errors import UsageError
from disttest.plugins.masking.masker import Masker
from disttest.results.journal import read_events


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
