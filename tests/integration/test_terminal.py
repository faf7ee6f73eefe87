"""What a run shows while it lasts: on a real terminal, in a log, and where nobody reads it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from github_log import commands_in
from lab import Ended, Lab
from terminal import Terminal

SUITE = """
    import warnings, pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("number", range(3))
    def test_good(world, number):
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_bad(world):
        print("::error::forged by a test")
        assert world.rank == 0, "not on rank 1"

    def test_warns():
        warnings.warn("take care")
"""
SLOW = """
    import pathlib, time, pytest

    @pytest.mark.world_size(1)
    @pytest.mark.fresh_world
    def test_slow(world):
        pathlib.Path("up").touch()
        time.sleep(600)
"""
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


@pytest.fixture(scope="module")
def suite(module_lab: Lab) -> Lab:
    return module_lab.write(test_suite=SUITE, test_broken="import no_such_module")


@pytest.fixture(scope="module")
def live(suite: Lab) -> Ended:
    return Terminal(suite, ".").end()


WAITS = """
    import pathlib, time, pytest

    @pytest.mark.world_size(2)
    @pytest.mark.timeout(60)
    def test_waits(world):
        while not pathlib.Path("seen").exists():
            time.sleep(0.01)
"""


def test_the_live_view_shows_what_runs_now_and_where(lab):
    terminal = Terminal(lab.write(test_waits=WAITS), "test_waits.py")
    running = re.compile(r"cpu:[0-9,]+ test_waits\[2xgloo")
    terminal.read_until(lambda screen: running.search(without_styles(screen)) is not None)
    (lab.folder / "seen").touch()
    ended = terminal.end()

    assert running.search(without_styles(ended.output))
    assert 0 == ended.exit_code


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_the_live_view_has_a_bar_and_the_failures_as_they_come(live):
    text = without_styles(live.output)

    assert 2 == live.exit_code
    assert re.search(r"━+\n\d/5 · .*1 not collected · .* s", text)
    assert "✗ rank 1 of 2 failed: AssertionError: not on rank 1\n  test_suite.py::test_bad[2xgloo] · " in text


def test_the_terminal_is_left_in_order(live):
    assert live.output.rfind(SHOW_CURSOR) > live.output.rfind(HIDE_CURSOR) > -1
    assert live.output.endswith("disttest: reports and logs in results\n")


def test_what_pytest_alone_knows_is_not_lost(live):
    text = without_styles(live.output)

    assert "test session starts" in text
    assert "collected 5 items / 1 error" in text
    assert "UserWarning: take care" in text


def test_each_failure_is_told_once_in_full_after_the_run(live):
    end = without_styles(live.output[live.output.rfind(SHOW_CURSOR) :])

    command = end.replace("\n", " ").replace("\r", "")
    # Tests that ran before it in the same processes come first.
    assert 1 == len(
        re.findall(r"repeat: disttest run [^$]*?'test_suite.py::test_bad\[2xgloo\]' --world-sizes", command)
    )
    assert "E   ModuleNotFoundError: No module named 'no_such_module'" in end
    assert "short test summary info" not in end
    assert "3 failed" not in end
    assert "1 failed, 1 not collected, 4 passed" in end


def test_a_cancelled_run_leaves_the_terminal_in_order(lab):
    terminal = Terminal(lab.write(test_slow=SLOW), ".")
    terminal.read_until(lambda _: (lab.folder / "up").exists())
    terminal.process.send_signal(signal.SIGINT)
    ended = terminal.end()

    assert 130 == ended.exit_code
    assert ended.output.rfind(SHOW_CURSOR) > ended.output.rfind(HIDE_CURSOR) > -1
    assert "ended by signal 2" in without_styles(ended.output)


def test_a_debugger_in_an_ordinary_test_can_be_talked_to(lab):
    lab.write(test_break="def test_break():\n    answer = 41\n    breakpoint()\n    assert answer == 42\n")
    terminal = Terminal(lab, "test_break.py", NO_COLOR="1")
    terminal.read_until(lambda screen: "(Pdb) " in screen)
    terminal.answer("answer = 42\nc\n")
    ended = terminal.end()

    assert 0 == ended.exit_code, ended.output
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", ended.output)


def test_in_githubs_log_suites_are_folded_and_tests_have_no_power(suite):
    ended = suite.run("run", "test_suite.py", GITHUB_ACTIONS="true")
    lines = ended.output.splitlines()
    powerful = commands_in(ended.output)

    assert "::group::test_suite: 4 tests went well" in powerful
    assert "::endgroup::" in powerful
    assert [
        line for line in powerful if "forged" in line and not line.startswith("::error title=test_bad")
    ] == []
    assert any("forged" in line for line in lines)


def test_in_a_log_each_test_is_one_block_in_order_after_pytests_header(suite):
    ended = suite.run("run", "test_suite.py")
    places = [
        ended.output.index(text)
        for text in (
            "collected 5 items",
            "✓ test_suite.py::test_good[2xgloo-0] passed",
            "✗ test_suite.py::test_bad[2xgloo] failed",
            "'test_suite.py::test_bad[2xgloo]' --world-sizes",
            "✓ test_suite.py::test_warns passed",
            "UserWarning: take care",
            "failed: 1 failed, 4 passed",
        )
    ]

    assert sorted(places) == places
    assert 1 == len(re.findall(r"E +AssertionError: not on rank 1", ended.output))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["no_such.py"], 4, "no such file or directory: no_such.py"),
        (["test_suite.py", "--", "--no-such-option"], 4, "unrecognized arguments: --no-such-option"),
        (["test_broken.py", "--", "-x"], 2, "No module named 'no_such_module'"),
        (["test_suite.py", "--", "--co", "-q"], 0, "test_suite.py::test_good[2xgloo-1]\n"),
        (["test_suite.py", "--", "-v", "-k", "warns"], 0, "test_suite.py::test_warns PASSED"),
        (["test_suite.py", "--", "-k", "warns", "--durations=3", "-rA"], 0, "PASSED test_suite.py::test_warns"),
    ],
)  # fmt: skip
def test_what_pytest_is_asked_it_answers(suite, arguments, code, said):
    ended = suite.run("run", *arguments)

    assert code == ended.exit_code, ended.output
    assert said in ended.output


def test_a_log_that_nobody_reads_does_not_keep_the_reports(suite):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    results = suite.folder / "unread"
    process = subprocess.Popen(
        [sys.executable, "-m", "disttest", "test_suite.py", "--results", "unread"],
        cwd=suite.folder,
        env=suite.environ,
        stdout=writer,
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    deadline = time.monotonic() + 120
    while not (results / "report.html").exists():
        assert time.monotonic() < deadline, "no reports"
        time.sleep(0.05)
    with open(reader, "rb") as rest:
        assert rest.read().endswith(b"disttest: reports and logs in unread\n"), "what was kept is lost"

    assert 1 == process.wait(timeout=30)


def test_a_log_that_is_closed_does_not_keep_the_reports(suite):
    process = suite.start("test_suite.py", "--results", "closed")
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=120)

    assert (suite.folder / "closed" / "report.html").exists()
    assert process.returncode != 0
