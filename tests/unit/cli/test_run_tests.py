"""What a run refuses before anything of it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from disttest.cli.main import command
from disttest.errors import UsageError
from disttest.plugins.masking.masker import Masker


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
    assert f"{flags[0]} is for one machine" in str(ended.exception)
