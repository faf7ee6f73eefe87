"""Whose output a run shows: the command's view of it, or pytest's own."""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter

from disttest.cli.progress_mode import asks_for_terminal, choose_progress, runs_nothing, shows_output
from disttest.reports.views import PlainView, RelayView
from disttest.runtime.controller.pytest_terminal import DEFAULT_CHARS, QuietReporter


@pytest.mark.parametrize(
    "words",
    [
        "-v",
        "-vv",
        "-sv",
        "-xvs",
        "-s",
        "--capture=no",
        "--capture no",
        "--pdb",
        "--trace",
        "--setup-show",
    ],
)
def test_pytest_keeps_its_terminal_where_it_is_asked_to_talk(words):
    assert asks_for_terminal(words.split())


@pytest.mark.parametrize(
    "words",
    [
        "-q",
        "-x",
        "-k v",
        "-kv",
        "-k -v",
        "-rs",
        "-r s",
        "-m s",
        "--capture=fd",
        "--capture fd",
        "--durations=3",
        "--lf",
        "-p v",
        "-lx",
    ],
)
def test_other_arguments_leave_the_view_alone(words):
    assert not asks_for_terminal(words.split())


@pytest.mark.parametrize("words", ["-s", "-xvs", "--capture=no", "--capture no", "--capture=fd -s"])
def test_output_is_shown_at_once_where_that_is_asked(words):
    assert shows_output(words.split())


@pytest.mark.parametrize("words", ["", "-v", "-rs", "-k s", "-s --capture=fd"])
def test_output_is_captured_otherwise(words):
    assert not shows_output(words.split())


@pytest.mark.parametrize(
    "words", ["--co", "--co -q", "--collect-only", "--fixtures", "--markers", "-h", "--version", "-qh"]
)
def test_questions_to_pytest_are_no_run(words):
    assert runs_nothing(words.split())


def test_a_value_that_looks_like_a_question_is_none():
    assert not runs_nothing(["-k", "-h", "-m", "--co_located"])


def test_lines_for_a_log_and_pytest_is_told_how_wide(tmp_path):
    mode = choose_progress("auto", [], {}, tmp_path, ())

    assert isinstance(mode.view, PlainView)
    assert mode.columns == mode.console.width
    assert [] == mode.pytest_arguments()
    assert not mode.owes_failures


@pytest.mark.parametrize(
    ("progress", "words", "addopts"), [("pytest", [], ""), ("auto", ["-v"], ""), ("auto", [], "-s -q")]
)
@pytest.mark.parametrize("at_terminal", [True, False])
def test_pytests_own_output(tmp_path, monkeypatch, progress, words, addopts, at_terminal):
    monkeypatch.setattr("sys.stdout.isatty", lambda: at_terminal, raising=False)
    mode = choose_progress(progress, words, {"PYTEST_ADDOPTS": addopts}, tmp_path, ())

    # Elsewhere than at a terminal we stand between, so that pytest waits for no reader and misses none.
    assert mode.view is None if at_terminal else isinstance(mode.view, RelayView)
    assert 0 == mode.columns
    assert not mode.owes_failures


def test_the_live_view_owes_the_failures_in_full(tmp_path):
    mode = choose_progress("live", ["-v"], {}, tmp_path, ())
    assert mode.view is not None
    mode.view.close()

    assert mode.owes_failures
    assert "--color=yes" in mode.pytest_arguments()


def test_a_broken_variable_is_pytests_to_complain_about(tmp_path):
    assert choose_progress("auto", [], {"PYTEST_ADDOPTS": "-k 'open"}, tmp_path, ()).view is not None


def test_pytest_still_has_what_the_quiet_terminal_overrides():
    overridden = {name for name in vars(QuietReporter) if not name.startswith("_")}

    assert {name for name in overridden if not hasattr(TerminalReporter, name)} <= {
        "pytest_runtest_logfinish"  # gone from newer versions, which do the same in their loop
    }


def test_the_default_of_r_is_what_we_take_it_for(pytestconfig):
    (option,) = [
        option for group in pytestconfig._parser._groups for option in group.options if "-r" in option.names()
    ]

    assert DEFAULT_CHARS == option.attrs()["default"]
