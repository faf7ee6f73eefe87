"""``disttest watch`` on a terminal: what a save runs, the keys, and that nothing is left."""

from __future__ import annotations

import psutil
import pytest
from resident import ResidentLab, resident_lab, wait_until
from terminal import Terminal

__all__ = ["resident_lab"]

FIRST = """
    import pytest
    from helper import EXPECTED

    @pytest.mark.world_size(2)
    def test_first(world):
        print("said by a rank")
        assert EXPECTED == 1
"""
SECOND = """
    import pytest

    @pytest.mark.world_size(2)
    def test_second(world):
        pass

    def test_ordinary():
        pass
"""
KEYS = "enter: all"


class Watching:
    """A watch, read screen by screen."""

    def __init__(self, lab: ResidentLab, *arguments: str) -> None:
        self.lab = lab
        self.terminal = Terminal(lab, *arguments, command="watch")

    def until(self, *words: str) -> str:
        """Wait for a screen with these words that is no running one; it is taken off."""
        self.terminal.read_until(
            lambda text: any(_has(screen, words) for screen in _screens(text)), limit_s=240
        )
        found = next(screen for screen in _screens(self.terminal.screen) if _has(screen, words))
        self.terminal.screen = ""
        return found

    def save(self, **files: str) -> None:
        self.lab.write(**files)


def _screens(text: str) -> list[str]:
    return [screen for screen in text.split("\x1b[2J\x1b[H") if "\nrunning\n" not in screen]


def _has(screen: str, words: tuple[str, ...]) -> bool:
    return all(word in screen for word in words) and ("enter: all" in screen or "any key" in screen)


@pytest.fixture
def suite(resident_lab: ResidentLab) -> ResidentLab:
    return resident_lab.write(test_first=FIRST, test_second=SECOND, helper="EXPECTED = 1\n")


def test_a_save_runs_what_it_touches_and_keys_do_what_they_say(suite: ResidentLab):
    watching = Watching(suite, ".")
    assert "passed: 3 tests (the last run: 3 tests in" in watching.until("the first run")

    watching.save(helper="EXPECTED = 2  # not any more\n")
    red = watching.until("saved helper.py")
    assert (
        "FAILED: 1 of 3 tests (the last run: 1 test in" in red and "test_first.py::test_first[2xgloo]" in red
    )

    watching.save(test_second=SECOND + "\n    def test_third():\n        pass\n")
    other = watching.until("saved test_second.py")
    assert "FAILED: 1 of 4 tests (the last run: 3 tests in" in other, "the other file is red still"

    watching.terminal.answer("r")
    assert "said by a rank" in watching.until("rank", "any key: back")
    watching.terminal.answer(" ")
    watching.until("saved test_second.py")

    watching.terminal.answer("f")
    assert "FAILED: 1 of 4 tests (the last run: 1 test in" in watching.until("failed tests")

    watching.save(test_second="import no_such_module\n")
    assert "test_second.py: " in watching.until("saved test_second.py", "1 file not collected")
    watching.save(test_second=SECOND, helper="EXPECTED = 1\n")
    watching.until("passed")
    watching.terminal.answer("\n")
    assert "passed: 3 tests (the last run: 3 tests in" in watching.until(": all")

    watching.terminal.answer("q")
    assert watching.terminal.end().exit_code == 0
    assert len(suite.parents) == 1


SLOW = """
    import pathlib, time

    def test_slow():
        pathlib.Path("up").touch()
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
"""


def test_a_save_during_a_run_ends_it_and_runs_both(suite: ResidentLab):
    suite.write(test_first=SLOW)
    watching = Watching(suite, ".")
    wait_until((suite.folder / "up").exists)
    watching.save(test_second=SECOND + "    # saved\n")
    watching.terminal.read_until(lambda text: "saved test_second.py" in text)
    (suite.folder / "go").touch()
    assert "passed: 3 tests (the last run: 3 tests in" in watching.until("saved test_second.py")
    watching.terminal.answer("q")
    assert watching.terminal.end().exit_code == 0


def test_it_needs_a_terminal(suite: ResidentLab):
    ended = suite.run("watch", ".")
    assert ended.exit_code == 4
    assert "disttest watch needs a terminal; use disttest run --resident in scripts" in ended.output


def test_keys_in_quick_succession_are_one_key(suite: ResidentLab):
    watching = Watching(suite, ".")
    watching.until("the first run")
    watching.terminal.answer("\nf\nrf\n\n")
    assert "passed: 3 tests (the last run: 3 tests in" in watching.until(": all")
    watching.terminal.answer("\n")
    watching.terminal.answer("\n")
    watching.until(": all", "passed: 3 tests")
    watching.terminal.answer("q")
    ended = watching.terminal.end()
    assert ended.exit_code == 0
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("way", ["terminate", "kill", "close the terminal"])
def test_a_watch_that_is_ended_ends_its_run_and_removes_its_folders(
    suite: ResidentLab, way: str, tmp_path_factory
):
    temporary = tmp_path_factory.mktemp("of-watch")
    suite.write(test_first="    import os\n" + SLOW.replace(".touch()", ".write_text(str(os.getpid()))"))
    terminal = Terminal(suite, ".", command="watch", TMPDIR=str(temporary))
    wait_until(lambda: (suite.folder / "up").exists() and bool((suite.folder / "up").read_text()))
    runs = psutil.Process(int((suite.folder / "up").read_text()))
    assert list(temporary.glob("disttest-watch-*"))

    if way == "close the terminal":
        terminal.close()
    else:
        getattr(terminal.process, way)()
    terminal.process.wait(60)

    wait_until(lambda: not runs.is_running() or runs.status() == psutil.STATUS_ZOMBIE, limit_s=60)
    wait_until(lambda: not list(temporary.glob("disttest-watch-*")), limit_s=60)
