"""What ``disttest launch`` takes for itself, and what it hands on to the run inside."""

from __future__ import annotations

import pytest

from disttest.cli.main import main
from disttest.errors import ExitCode
from disttest.extras.container.options import LaunchOptions


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[LaunchOptions]:
    """What launches were asked to do; nothing is started."""
    asked: list[LaunchOptions] = []

    def note(options: LaunchOptions, *_: object, **__: object) -> int:
        asked.append(options)
        return 0

    monkeypatch.setattr("disttest.extras.container.launching.launch", note)
    return asked


@pytest.mark.parametrize(
    ("words", "inside"),
    [
        (["--setup", "prepare.sh", "tests"], ["tests", "--setup", "prepare.sh"]),
        (["--setup=prepare.sh", "tests", "more"], ["tests", "--setup", "prepare.sh", "more"]),
        (["--setup", "prepare.sh", "plan", "tests"], ["plan", "--setup", "prepare.sh", "tests"]),
        (["--isolate-files", "tests"], ["tests", "--isolate-files=true"]),
        (["--isolate-files", "false", "tests"], ["tests", "--isolate-files=false"]),
        (["--timings", "a", "--timings", "b", "ddp"], ["ddp", "--timings", "a", "--timings", "b"]),
        (
            ["--retries", "1", "--image", "mine:1", "--seed", "2", "ddp"],
            ["ddp", "--retries", "1", "--seed", "2"],
        ),
        (["ddp", "--setup", "prepare.sh"], ["ddp", "--setup", "prepare.sh"]),
        (["-k", "reduce", "ddp", "--", "-q"], ["ddp", "--", "-k", "reduce", "-q"]),
    ],
)
def test_options_of_a_run_may_stand_before_its_targets(
    words: list[str], inside: list[str], launched: list[LaunchOptions]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["launch", *words])

    assert ended.value.code == 0
    assert list(launched[0].arguments) == inside


def test_what_both_have_is_of_the_launch(launched: list[LaunchOptions]) -> None:
    with pytest.raises(SystemExit):
        main(["launch", "--gpus", "none", "ddp", "--gpus", "1"])

    assert launched[0].gpus == "none"
    assert launched[0].arguments == ("ddp", "--gpus", "1")


def test_what_neither_has_is_refused(
    launched: list[LaunchOptions], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["launch", "--setpu", "prepare.sh", "tests"])

    assert (ended.value.code, launched) == (ExitCode.USAGE, [])
    assert "--setup" in capfd.readouterr().err
