"""Annotations at the end of a run: in a workflow only, above the final lines, and not without the plugin."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_runs import mixed_run

from disttest.cli import finish
from disttest.plugin_manager import Plugins
from disttest.results.floors import Floors

WORKFLOW = {"GITHUB_ACTIONS": "true"}


@pytest.fixture
def end(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    def finished(environ: dict[str, str]) -> str:
        run = mixed_run(tmp_path)
        finish.finish_run(run, tmp_path, floors=Floors(), empty_shard=False, failures=False, environ=environ)
        return capfd.readouterr().out

    return finished


def test_a_workflow_gets_them_above_the_final_lines(end) -> None:
    shown = end(WORKFLOW)

    assert "::error title=" in shown
    assert shown.rindex("::error ") < shown.index("disttest: reports and logs in ")


@pytest.mark.parametrize("environ", [{}, {"GITHUB_ACTIONS": "false"}])
def test_elsewhere_there_are_none(end, environ) -> None:
    assert "::error" not in end(environ)


def test_without_the_plugin_there_are_none(end, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = Plugins(["disttest.github"])
    monkeypatch.setattr(finish, "plugin_manager", lambda: plugins)

    assert "::error" not in end(WORKFLOW)
