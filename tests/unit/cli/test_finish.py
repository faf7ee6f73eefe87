"""The last words of a run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from sample_runs import mixed_run

from disttest.cli.finish import finish_run
from disttest.results.floors import Floors


def test_why_a_run_ended_early_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    why = "the deadline of the run (60 s) passed"
    run = msgspec.structs.replace(mixed_run(tmp_path), exit_code=8, reason=why)

    finish_run(run, tmp_path, floors=Floors(), empty_shard=False, failures=False, environ={})

    told = capfd.readouterr()
    last_words = [line.removeprefix("disttest: ") for line in (told.out + told.err).splitlines()]
    assert [why] == [line for line in last_words if line == why]
