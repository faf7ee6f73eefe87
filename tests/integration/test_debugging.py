"""One rank in a debugger, at a terminal, while its world and its limits wait."""

import os
import re
import time
from pathlib import Path

from terminal import Terminal

from disttest.limits import MAIN_MARGIN_S
from disttest.model import Outcome

LIMIT_S = 6
"""Of tests that do next to nothing: what they do while nobody holds them has to fit on any machine."""
SUITE = f"""
    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_warm(world):
        dist.barrier()

    @pytest.mark.world_size(2)
    @pytest.mark.timeout({LIMIT_S})
    def test_stops(world):
        secret = 40 + world.rank
        breakpoint()
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_fails(world):
        here = 70 + world.rank
        dist.barrier()
        assert world.rank == 0
        dist.barrier()
"""
COLLECTED_BY_RANKS = """
    import threading

    import pytest

    threading.Thread(target=threading.Event().wait, daemon=True).start()

    @pytest.mark.world_size(2)
    def test_all_fail(world):
        here = 80 + world.rank
        assert world.size == 3
"""


HOSTED = f"""
    import pytest
    import torch.testing._internal.common_distributed as common

    class TestProcesses(common.MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        @pytest.mark.timeout({LIMIT_S})
        def test_1_stops(self):
            secret = 40 + self.rank
            breakpoint()
            assert secret

        def test_2_fails(self):
            here = 70 + self.rank
            assert self.rank == 0

    class TestStaying(common.MultiProcContinuousTest):
        world_size = 2

        @classmethod
        def backend_str(cls):
            return "gloo"

        def test_3_fails(self):
            there = 90 + self.rank
            assert self.rank == 0
"""


MAIN = """
    import torch.testing._internal.common_distributed as common

    class TestMain(common.MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            size = self.world_size
            assert "2" in self._testMethodName
            self._spawn_processes()

        def test_1_not_set_up(self):
            pass

        def test_2_all_fail(self):
            assert self.rank == 2
"""


def prompt(terminal, rank, count):
    """Wait until a rank has asked so often."""
    asked = f"(rank {rank}) "
    terminal.read_until(lambda screen: screen.count(asked) >= count)
    assert terminal.screen.count(asked) == count, terminal.screen


def until_another_waits(terminal):
    """Wait until one more rank wants the terminal: the answer to the first would begin the grace of those that do not yet."""
    inode = os.stat(terminal.device).st_ino
    deadline_s = time.monotonic() + 240
    while not re.search(rf"-> FLOCK .*:{inode} ", Path("/proc/locks").read_text()):
        assert time.monotonic() < deadline_s, terminal.screen
        time.sleep(0.05)


def answer(terminal, words, shows):
    terminal.answer(f"{words}\n")
    terminal.read_until(lambda screen: shows in screen)


def look_and_go_on(terminal, rank, count, words, shows):
    prompt(terminal, rank, count)
    answer(terminal, words, shows)
    terminal.answer("c\n")


def test_the_rank_that_was_named_gets_the_terminal_and_time_stands_still(lab):
    terminal = Terminal(lab.write(test_suite=SUITE), "test_suite.py", "--debug-rank", "1")
    prompt(terminal, 1, 1)
    time.sleep(LIMIT_S + 0.5)  # longer than the test may take
    answer(terminal, "p secret + 1000", "1041")
    terminal.answer("c\n")
    look_and_go_on(terminal, 1, 3, "p here + 1000", "1071")
    ended = terminal.end()

    assert Outcome.PASSED is ended.result("test_stops").outcome, ended.output
    failed = ended.result("test_fails")
    assert (Outcome.FAILED, 1, (0,)) == (failed.outcome, failed.culprit, failed.victims)
    assert "rank 1 failed: test_suite.py::test_fails[2xgloo]" in ended.output
    assert "(rank 0)" not in ended.output
    assert "1041" not in ended.log("test_stops", 1)
    assert not failed.notes


def test_ranks_that_fail_are_debugged_one_after_the_other_wherever_they_come_from(lab):
    terminal = Terminal(lab.write(test_thread=COLLECTED_BY_RANKS), "test_thread.py", "--pdb")
    asked = re.compile(r"\(rank (\d)\) ")
    first = int(asked.search(terminal.read_until(lambda screen: asked.search(screen) is not None))[1])
    until_another_waits(terminal)
    for rank in (first, 1 - first):
        look_and_go_on(terminal, rank, 1, "p here + 1000", str(1080 + rank))
    ended = terminal.end()

    result = ended.result("test_all_fail")
    assert "all 2 ranks failed: AssertionError: assert 2 == 3" == result.message
    assert 1 == ended.exit_code


def test_a_rank_that_a_class_of_torch_starts_gets_the_terminal_too(lab):
    terminal = Terminal(lab.write(test_hosted=HOSTED), "test_hosted.py", "--host", "--debug-rank", "1")
    prompt(terminal, 1, 1)
    time.sleep(LIMIT_S + MAIN_MARGIN_S + 0.5)  # longer than the rank may take, and than its main process
    answer(terminal, "p secret + 1000", "1041")
    terminal.answer("c\n")
    look_and_go_on(terminal, 1, 3, "p here + 1000", "1071")
    look_and_go_on(terminal, 1, 5, "p there + 1000", "1091")
    ended = terminal.end()

    assert Outcome.PASSED is ended.result("test_1_stops").outcome, ended.output
    for name in ("test_2_fails", "test_3_fails"):
        failed = ended.result(name)
        assert (Outcome.FAILED, 1) == (failed.outcome, failed.culprit), ended.output
    assert 2 == ended.output.count("rank 1 failed: AssertionError")
    assert "(rank 0)" not in ended.output
    assert "(main process)" not in ended.output


def test_a_main_process_is_debugged_for_what_it_has_raised_itself(lab):
    terminal = Terminal(lab.write(test_main=MAIN), "test_main.py", "--pdb")
    terminal.read_until(lambda screen: "(main process) " in screen)
    answer(terminal, "p size + 1000", "1002")
    terminal.answer("c\n")
    asked = re.compile(r"\(rank (\d)\) ")
    first = int(asked.search(terminal.read_until(lambda screen: asked.search(screen) is not None))[1])
    until_another_waits(terminal)
    for rank in (first, 1 - first):
        prompt(terminal, rank, 1)
        terminal.answer("c\n")
    ended = terminal.end()

    assert ended.result("test_1_not_set_up").outcome.is_bad
    assert (
        "all 2 ranks failed, rank 0: AssertionError: assert 0 == 2" == ended.result("test_2_all_fail").message
    )
    assert 2 == ended.output.count("(main process) "), "its ranks' failure is not asked about once more"


def test_without_a_terminal_the_way_to_one_is_told(lab):
    lab.write(test_suite=SUITE)

    refused = lab.run("run", "test_suite.py", "--debug-rank", "1")
    assert 4 == refused.exit_code
    assert "--debug-rank needs a terminal, but standard input is not one" in refused.output
    ended = lab.run("run", "test_suite.py", "-k", "stops")
    assert (
        "breakpoint() in a rank needs a terminal, but ranks write to logs: run the test at a terminal with --debug-rank K"
        in (ended.result("test_stops").message)
    )
