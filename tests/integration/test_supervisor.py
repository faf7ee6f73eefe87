"""Whatever happens to the pytest process or the command, reports appear and nothing lives on."""

import os
import signal
import time

import psutil
import pytest
from lab import Ended

from disttest.model import Cause, Outcome
from disttest.results.journal import FILE_NAME

# With four slots two worlds run at a time: the quick test and slow ones, then slow ones until the end of days.
SLOW = """
    import pathlib, time, pytest
    import torch.distributed as dist

    pytestmark = [pytest.mark.world_size(2), pytest.mark.fresh_world]

    def test_quick(world):
        dist.barrier()

    @pytest.mark.parametrize("number", range(4))
    def test_slow(world, number):
        pathlib.Path(f"slow{number}.rank{world.rank}.up").touch()
        time.sleep(600)
"""
SLOTS = ("--slots", "4")


def wait_for_slow_worlds(lab, limit_s=60):
    """Wait until two worlds of slow tests are up: the quick test has finished then."""
    deadline = time.monotonic() + limit_s
    while len(list(lab.folder.glob("slow*.up"))) < 4:
        assert time.monotonic() < deadline, "the worlds never came up"
        time.sleep(0.01)


def slow_results(ended):
    results = [test.final for test in ended.run.tests if "test_slow[" in test.test.nodeid]
    started = [result for result in results if "had not started" not in result.message]
    return started, [result for result in results if result not in started]


def finish(lab, process) -> Ended:
    output, _ = process.communicate(timeout=60)
    return Ended(process.returncode, output, lab.folder / "results")


@pytest.mark.parametrize(
    "name", ["SIGINT", "SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.thorough("SIGTERM shows it"))]
)
def test_cancel_writes_reports_and_leaves_nothing(lab, name):
    signum = getattr(signal, name)
    process = lab.write(test_slow=SLOW).start("test_slow.py", *SLOTS)
    wait_for_slow_worlds(lab)

    process.send_signal(signum)
    ended = finish(lab, process)

    assert 128 + signum == ended.exit_code
    assert Outcome.PASSED is ended.result("test_quick").outcome
    started, never = slow_results(ended)
    assert (2, 2) == (len(started), len(never))
    assert all(Outcome.ERROR is result.outcome for result in started)
    assert all("in test_slow" in result.ranks[0].stacks for result in started)
    assert f"did not finish: it had not started when the run was cancelled by {name}" == never[0].message
    assert 5 == len(list(ended.junit().iter("testcase")))
    assert (ended.results / "summary.md").exists()


def test_under_nohup_a_run_outlives_its_terminal(lab):
    lab.write(
        test_waits="""
        import pathlib, time, pytest

        @pytest.mark.world_size(2)
        def test_waits(world):
            pathlib.Path(f"up{world.rank}").touch()
            while not pathlib.Path("go").exists():
                time.sleep(0.01)
    """
    )
    process = lab.start("run", "test_waits.py", wrapper=("setsid", "nohup"))
    deadline = time.monotonic() + 60
    while len(list(lab.folder.glob("up*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    os.killpg(process.pid, signal.SIGHUP)
    (lab.folder / "go").touch()
    ended = finish(lab, process)

    assert 0 == ended.exit_code, ended.output


HANDLES_SIGTERM = """
    import os, signal

    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
"""


def test_a_handler_of_imported_code_does_not_make_the_end_look_orderly(lab):
    """Some install one as they are imported, as composer does; worlds take the signal another way."""
    process = lab.write(conftest=HANDLES_SIGTERM, test_slow=SLOW).start("test_slow.py", *SLOTS)
    wait_for_slow_worlds(lab)

    process.send_signal(signal.SIGTERM)
    ended = finish(lab, process)

    assert 128 + signal.SIGTERM == ended.exit_code, ended.output
    started, _ = slow_results(ended)
    assert [(Outcome.ERROR, True)] * 2 == [
        (result.outcome, "in test_slow" in result.ranks[0].stacks) for result in started
    ]


HOSTED = """
    import pathlib, time
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class TestSlow(MultiProcessTestCase):
        world_size = 4

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_slow(self):
            pathlib.Path(f"{FOLDER}/slow.rank{self.rank}.up").touch()
            time.sleep(600)
"""


def test_cancel_tells_what_the_ranks_of_a_hosted_class_were_doing(lab):
    source = f"    FOLDER = {str(lab.folder)!r}\n" + HOSTED
    process = lab.write(test_hosted=source).start("test_hosted.py")
    wait_for_slow_worlds(lab)

    process.send_signal(signal.SIGINT)
    ended = finish(lab, process)

    assert 130 == ended.exit_code
    result = ended.result("test_slow")
    assert Outcome.ERROR is result.outcome, ended.output
    stacks = {record.rank: record.stacks for record in result.ranks}
    assert all("in test_slow" in stacks[rank] for rank in range(4)), stacks


DEATHS = {
    "segfault at import": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "exit at import": ("import os; os._exit(0)", "exit code 0"),
    "a code for skips at import": ("import os; os._exit(86)", "exit code 86"),
}
MORE_DEATHS = {
    "abort at import": ("import os; os.abort()", "SIGABRT"),
    "kill itself at import": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
}


@pytest.mark.parametrize(
    "source,how",
    [
        *(pytest.param(*death, id=name) for name, death in DEATHS.items()),
        *(
            pytest.param(*death, id=name, marks=pytest.mark.thorough("a signal and a code are shown"))
            for name, death in MORE_DEATHS.items()
        ),
    ],
)
def test_death_of_pytest_at_import_is_reported(lab, source, how):
    ended = lab.write(conftest=source, test_x="def test_x(): pass").run(".")

    assert 3 == ended.exit_code, ended.output
    assert f"the pytest process ended with {how} in the middle of the run" in ended.output
    assert 1 == len([c for c in ended.junit().iter("testcase") if c.find("error") is not None])


def test_a_hang_at_import_ends_at_the_deadline_of_the_run(lab):
    """With the GIL held, so that nothing in the process itself could end it."""
    hang = "import ctypes, os; ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)"
    ended = lab.write(conftest=hang, test_x="def test_x(): pass").run(".", "--deadline", "1")

    assert 124 == ended.exit_code, ended.output
    assert "the deadline of the run passed" in ended.output
    assert (ended.results / "junit.xml").exists()


@pytest.mark.parametrize("mark", ["", "@pytest.mark.world_size(2)"], ids=["ordinary", "world"])
def test_the_deadline_counts_from_the_start_of_the_command(lab, mark):
    """Where torch took ten seconds to import, it counted from then on, and the supervisor broke the run off first."""
    test = f"""
        import pytest

        {mark}
        def test_x():
            pass
    """
    lab.write(conftest="import time; time.sleep(2)", test_x=test)
    ended = lab.run("test_x.py", "--deadline", "2", *SLOTS)

    assert 124 == ended.exit_code, ended.output
    assert Outcome.PASSED not in [test.final.outcome for test in ended.run.tests]


@pytest.mark.parametrize("results", [{}, {"results": ""}], ids=["results", "no-results"])
def test_no_ordinary_test_begins_after_the_deadline(lab, results):
    test = """
        import time

        def test_first():
            time.sleep(1)

        def test_second():
            pass
    """
    ended = lab.write(test_x=test).pytest("--disttest-deadline=1", **results)

    assert 124 == ended.exit_code, ended.output
    assert "the deadline of the run (1 s) passed" in ended.output
    assert "1 passed" in ended.output


def test_death_of_the_controller_in_mid_run(lab):
    process = lab.write(test_slow=SLOW).start("test_slow.py", *SLOTS)
    wait_for_slow_worlds(lab)
    controller = int(_children(process.pid)[0])

    os.kill(controller, signal.SIGKILL)
    ended = finish(lab, process)

    assert 3 == ended.exit_code
    for slow in slow_results(ended)[0]:
        assert (Outcome.ERROR, Cause.INFRASTRUCTURE) == (slow.outcome, slow.cause)
        assert "the pytest process ended with SIGKILL in the middle of the run" in slow.message


def test_death_of_a_world_process_is_an_infrastructure_error_and_the_rest_runs(lab):
    lab.write(
        test_world="""
        import os, signal, pytest
        import torch.distributed as dist

        @pytest.mark.world_size(2)
        def test_kills_its_world(world):
            if world.rank == 0:
                os.kill(os.getppid(), signal.SIGKILL)
            dist.barrier()

        @pytest.mark.world_size(2)
        def test_next(world):
            dist.barrier()
        """
    )
    ended = lab.run("test_world.py")

    result = ended.result("test_kills_its_world")
    assert (Outcome.ERROR, Cause.INFRASTRUCTURE) == (result.outcome, result.cause)
    assert "ended with SIGKILL before it judged the test" in result.message
    assert Outcome.PASSED is ended.result("test_next").outcome
    assert 7 == ended.exit_code


PASSES_ONCE_THE_SLOW_WORLDS_ARE_UP = """
    import pathlib
    from disttest.clock import monotonic
    from disttest.runtime.controller.controller import Controller

    FOLDER = pathlib.Path(__file__).parent

    def deadline_s(controller):
        return 0.001 if len(list(FOLDER.glob("slow*.up"))) == 4 else monotonic() + 0.02

    Controller._deadline_s = property(deadline_s, lambda controller, given_s: None)
"""
"""A conftest: the moment of the deadline depends on what ranks did, not on the speed of the machine."""


def test_deadline_of_the_run(lab):
    lab.write(conftest=PASSES_ONCE_THE_SLOW_WORLDS_ARE_UP, test_slow=SLOW)
    ended = lab.run("test_slow.py", "--deadline", "600", *SLOTS)

    assert 124 == ended.exit_code
    assert Outcome.PASSED is ended.result("test_quick").outcome
    started, never = slow_results(ended)
    assert (2, 2) == (len(started), len(never))
    assert all("the deadline of the run (600 s) passed" in result.message for result in started)


def test_kill_of_the_command_leaves_no_process_and_a_journal(lab):
    process = lab.write(test_slow=SLOW).start("test_slow.py", *SLOTS)
    wait_for_slow_worlds(lab)

    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=30)
    _, alive = psutil.wait_procs(below, timeout=60)  # worlds take a moment to notice and to clear up

    assert [] == alive
    assert (lab.folder / "results" / FILE_NAME).exists()
    # the fixture `nothing_left` checks that pytest and all below it are gone


def _children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


LEFT_BY_IMPORT = """
    import atexit, ctypes, os, pytest, sys, weakref
    import torch

    def at_exit():
        import torch.distributed
        print("exit handler", file=STREAM)

    STREAM = open(f"left-{os.getpid()}.txt", "w")
    FINALIZER = weakref.finalize(at_exit, lambda: print("finalizer", file=STREAM))
    atexit.register(at_exit)
    print("never flushed", file=STREAM)
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    libc.fputs(b"written by C", ctypes.c_void_p(libc.fopen(b"left-by-c.txt", b"w")))

    @pytest.mark.world_size(2)
    def test_world(world):
        pass
"""


def test_what_an_import_leaves_is_done_at_the_end_of_a_run_of_worlds_only(lab):
    """The destructors of C++ are left out then, and nothing else."""
    ended = lab.write(test_leaves=LEFT_BY_IMPORT).run("test_leaves.py")

    assert 0 == ended.exit_code, ended.output
    (left,) = lab.folder.glob("left-[0-9]*.txt")
    assert ["exit handler", "finalizer", "never flushed"] == sorted(left.read_text().splitlines())
    assert "written by C" == (lab.folder / "left-by-c.txt").read_text()
