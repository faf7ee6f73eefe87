"""``disttest config``, ``disttest completion`` and ``disttest man``."""

import os
import re

import pytest
from click.testing import CliRunner

from disttest.cli.main import command
from disttest.cli.words import warn
from disttest.errors import ExitCode
from disttest.options.registry import OPTIONS, PROJECT_OPTIONS, is_shown
from disttest.outgoing import outgoing
from disttest.plugins.masking.masker import Masker


@pytest.fixture
def disttest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DISTTEST_")]:
        monkeypatch.delenv(name)

    def run(*words, **environ):
        ended = CliRunner().invoke(command, words, env=environ, obj=[], prog_name="disttest")
        return ended.exit_code, f"{ended.output}{ended.exception or ''}"

    return run


def test_every_setting_is_shown_with_its_source(disttest, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.disttest]\ntimeout = 60\nseed = 7\n")
    code, shown = disttest(
        "config", DISTTEST_BACKEND="gloo", DISTTEST_SEED="8", DISTTEST_MASK="a-secret-word"
    )
    rows = {line.split()[0]: line.split()[1:] for line in shown.partition("\n\n")[0].splitlines()}

    assert 0 == code, shown
    assert [*rows] == [option.name for option in PROJECT_OPTIONS]
    assert ["60", str(tmp_path / "pyproject.toml")] == rows["timeout"]
    assert ["gloo", "DISTTEST_BACKEND"] == rows["backend"]
    assert ["8", "DISTTEST_SEED"] == rows["seed"]
    assert ["(hidden)", "DISTTEST_MASK"] == rows["mask"]
    assert ["auto", "default"] == rows["isolation"]
    assert "a-secret-word" not in shown


def test_a_setting_that_makes_no_sense_is_refused_as_a_run_refuses_it(disttest):
    code, said = disttest("config", DISTTEST_SEED="x")

    assert code
    assert "DISTTEST_SEED: 'x' is not" in said


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("disttest run --world-s", "--world-sizes"),
        ("disttest run smo", "smoke"),
        ("disttest conf", "config"),
        ("disttest plan --po", "--pool"),
    ],
)
def test_words_are_completed(disttest, words, completed):
    asked = {"_DISTTEST_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    code, answer = disttest(**asked)

    assert 0 == code, answer
    assert f"plain,{completed}" in answer.splitlines()


@pytest.mark.parametrize("shell", ["zsh", "fish"])  # that of bash asks bash for its version
def test_each_shell_has_its_script(disttest, shell):
    code, script = disttest("completion", shell)

    assert (0, True) == (code, f"{shell}_complete" in script), script


def test_the_manual_has_every_command_option_variable_and_exit_code(disttest):
    code, page = disttest("man")
    words = page.replace("\\-", "-")

    assert 0 == code
    assert page.startswith(".TH DISTTEST 1")
    for option in OPTIONS:
        shown_by = [name for name in option.commands if is_shown(option, name)]
        if any(not command.commands[name].hidden for name in shown_by):
            assert f"{option.flag}{option.form and ' '}" in words, option.name
        assert not option.has_variable or f"\\fB{option.variable}\\fR" in words
    assert all(f"disttest {name}" in words for name, each in command.commands.items() if not each.hidden)
    assert all(f"\\fB{each.value}\\fR" in words for each in ExitCode)
    assert ".SS disttest node-agent" not in words
    assert page.isascii()


def test_nothing_in_the_manual_is_an_unmeant_request_of_troff(disttest):
    _, page = disttest("man")
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}

    assert {".TH", ".SH", ".SS", ".TP", ".br"} == requests
    assert {"\\-", "\\f", "\\e", "\\&", "\\["} >= set(re.findall(r"\\.", page))


def test_a_warning_shows_no_secret(monkeypatch, capsys):
    masker = Masker()
    masker.hide(["swordfish"])
    monkeypatch.setattr(outgoing, "_filter", masker)

    warn("t.py::t[swordfish] could not be collected")

    assert "disttest: t.py::t[***] could not be collected\n" == capsys.readouterr().err
