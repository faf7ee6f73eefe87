"""Ordinary tests that are contained: none of them can end, hang or spoil the run."""

import pytest
from lab import Lab

from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

CONFTEST = """
    import os
    import pytest

    @pytest.fixture(scope="session")
    def shared():
        return os.getpid()
"""

FAULTY = """
    import multiprocessing
    import os
    import signal
    import subprocess
    import sys
    import time
    import pytest

    @pytest.fixture(scope="module")
    def module_value():
        return {"pid": os.getpid(), "uses": 0}

    def test_first(module_value, shared):
        module_value["uses"] += 1
        assert module_value["pid"] == os.getpid() == shared

    def test_second(module_value, tmp_path):
        module_value["uses"] += 1
        assert module_value["uses"] == 2, "a file shares its process"
        (tmp_path / "file").write_text("here")

    def test_fails():
        print("said before it failed")
        assert 1 == 2

    def test_crashes():
        signal.raise_signal(signal.SIGSEGV)

    def test_exits():
        os._exit(0)

    @pytest.mark.timeout(1)
    def test_hangs():
        time.sleep(600)

    def test_leaves_a_child():
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    # Started without a time limit, and there when a test with one begins: how long a start takes is the machine's.
    def die(told, queue):
        told.wait()
        signal.raise_signal(signal.SIGSEGV)

    @pytest.fixture(scope="module")
    def child():
        context = multiprocessing.get_context("fork")
        told, queue = context.Event(), context.Queue()
        process = context.Process(target=die, args=(told, queue))
        process.start()
        yield told, queue
        process.kill()

    @pytest.fixture(scope="module")
    def rank():
        code = "import time; print('a rank speaks', flush=True); time.sleep(600)"
        seen, speaks = os.pipe()
        rank = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "RANK": "1"}, stdout=speaks)
        assert os.read(seen, 1)
        yield rank
        rank.kill()

    def test_starts_a_child(child):
        subprocess.run(["echo", "a child speaks"], check=True)

    @pytest.mark.timeout(3)
    def test_waits_for_a_dead_child(child):
        told, queue = child
        told.set()
        queue.get()

    def test_starts_a_rank(rank):
        pass

    @pytest.mark.timeout(3)
    def test_waits_for_ranks(rank):
        rank.wait()

    def test_flaky(request):
        mark = request.config.rootpath / "was-here"
        if not mark.exists():
            mark.touch()
            assert False, "the first time"

    @pytest.mark.skipif(True, reason="never here")
    def test_skipped():
        pass

    @pytest.mark.xfail
    def test_expected():
        assert False

    def test_last():
        pass
"""
OTHER = """
    import os

    def test_other_file(shared):
        assert shared == os.getpid()
"""


@pytest.fixture(scope="module")
def ended(module_lab):
    lab = module_lab.write(conftest=CONFTEST, test_faulty=FAULTY, test_other=OTHER)
    return lab.run("--isolate-files", "--retries", "1", "test_faulty.py", "test_other.py")


def test_every_test_has_its_own_verdict(ended):
    assert {
        "test_first": Outcome.PASSED,
        "test_second": Outcome.PASSED,
        "test_fails": Outcome.FAILED,
        "test_crashes": Outcome.ERROR,
        "test_exits": Outcome.ERROR,
        "test_hangs": Outcome.FAILED,
        "test_leaves_a_child": Outcome.PASSED,
        "test_starts_a_child": Outcome.PASSED,
        "test_waits_for_a_dead_child": Outcome.FAILED,
        "test_starts_a_rank": Outcome.PASSED,
        "test_waits_for_ranks": Outcome.FAILED,
        "test_flaky": Outcome.PASSED,
        "test_skipped": Outcome.SKIPPED,
        "test_expected": Outcome.XFAILED,
        "test_last": Outcome.PASSED,
        "test_other_file": Outcome.PASSED,
    } == {test.test.name: test.final.outcome for test in ended.run.tests}
    assert ended.exit_code == 1
    assert [test.test.name for test in ended.run.tests if test.flaky] == ["test_flaky"]


def test_failures_say_what_happened(ended):
    assert ended.result("test_fails").message == "assert 1 == 2"
    assert "said before it failed" in ended.output
    assert ended.result("test_crashes").message.startswith("its process was killed by SIGSEGV in call")
    assert ended.result("test_exits").message.startswith("its process exited with code 0 in call")
    hang = ended.result("test_hangs")
    assert "timed out after 1 s" in hang.message
    assert "in test_hangs" in hang.ranks[0].stacks
    assert "--isolate-files" in ended.output, "the repeat command contains the test too"


def test_processes_of_a_test_are_named_and_ended(ended):
    (note,) = [n for n in ended.result("test_leaves_a_child").notes if "which was killed" in n]
    assert note.startswith("its process leaked process ") and "import time" in note
    (speaker,) = ended.result("test_starts_a_child").ranks
    assert "a child speaks" in (ended.results / speaker.log).read_text()
    # A second attempt starts them anew, within its limit.
    dead, waiting = (
        next(test.attempts[0] for test in ended.run.tests if test.test.name == name)
        for name in ("test_waits_for_a_dead_child", "test_waits_for_ranks")
    )
    assert "was killed by SIGSEGV, and the test did not wait for it" in dead.message
    assert "rank 1" in [process.role for process in waiting.ranks[0].started]


SHARED = """
    import os
    import pytest

    @pytest.fixture(scope="session")
    def server(request):
        with (request.config.rootpath / "set-up").open("a") as file:
            print(os.getpid(), file=file)
        return os.getpid()
"""
SHARES = """
    import os

    def test_shares(server):
        assert server == os.getpid()
"""
STAYS = """
    import os
    import queue
    import subprocess
    import time
    import pytest

    PID = os.getpid()

    def test_in_the_pytest_process(record_testsuite_property):
        assert os.getpid() == PID

    @pytest.mark.timeout(1)
    def test_hangs():
        subprocess.run(["sleep", "600"])

    @pytest.fixture
    def hangs_after():
        yield
        time.sleep(600)

    @pytest.mark.timeout(1)
    def test_hangs_in_teardown(hangs_after):
        pass

    def test_goes_on():
        pass
"""
ALONE = """
    import os

    PID = os.getpid()

    def test_apart():
        assert os.getpid() != PID
"""


@pytest.fixture(scope="module")
def placed(tmp_path_factory, nothing_left):
    lab = Lab(tmp_path_factory.mktemp("placed"))
    lab.write(conftest=SHARED, test_one=SHARES, test_two=SHARES, test_stays=STAYS, test_alone=ALONE)
    return lab, lab.run("--isolate-files", ".")


def test_files_that_share_a_fixture_of_the_session_share_a_process(placed):
    lab, ended = placed
    assert 1 == len((lab.folder / "set-up").read_text().split())
    assert {Outcome.PASSED} == {
        test.final.outcome for test in ended.run.tests if "stays" not in test.test.file
    }


def test_what_needs_the_pytest_process_stays_there_and_keeps_its_limit(placed):
    _, ended = placed
    assert (
        "test_stays.py is not isolated: its tests use the fixture record_testsuite_property" in ended.output
    )
    assert {
        "test_in_the_pytest_process": Outcome.PASSED,
        "test_hangs": Outcome.FAILED,
        "test_hangs_in_teardown": Outcome.ERROR,
        "test_goes_on": Outcome.PASSED,
    } == {test.test.name: test.final.outcome for test in ended.run.tests if "stays" in test.test.file}
    hang = ended.result("test_hangs")
    assert "timed out after 1 s in call" in hang.message
    assert "(sleep 600), which was killed" in hang.details
    assert "timed out after 1 s in teardown" in ended.result("test_hangs_in_teardown").message


def test_what_speaks_to_the_terminal_is_not_contained(lab):
    talking = lab.write(test_alone=ALONE).run("test_alone.py", "--isolate-files", "--", "-s")

    assert "--isolate-files has no effect with -s: ordinary tests run in the pytest process" in talking.output
    assert "assert" in talking.result("test_apart").message


OUTCOMES = """
    import os
    import sys
    import unittest
    import pytest

    def test_passes(tmp_path, capsys, monkeypatch):
        print("here")
        assert capsys.readouterr().out == "here\\n"

    def test_skips():
        pytest.skip("in the call")

    @pytest.mark.xfail(strict=True)
    def test_strict():
        pass

    @pytest.mark.xfail
    def test_xpassed():
        pass

    @pytest.mark.xfail(raises=ValueError)
    def test_other_error():
        raise TypeError("not that one")

    @pytest.fixture
    def broken():
        raise OSError("no set-up")

    def test_setup_error(broken):
        pass

    @pytest.fixture
    def breaks_after():
        yield
        raise OSError("no tear-down")

    def test_teardown_error(breaks_after):
        pass

    def test_leaves_by_exit():
        sys.exit(3)

    @pytest.mark.parametrize("value", ["a", "b"])
    def test_parameters(value):
        assert value == "a"

    def test_environment():
        assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & set(os.environ)

    class TestClass(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.value = 3

        def test_method(self):
            self.assertEqual(self.value, 3)

        def test_fails(self):
            self.assertEqual(self.value, 4)
"""


def outcomes(ended):
    return {
        test.test.name: (test.final.outcome, test.final.phase, test.final.message) for test in ended.run.tests
    }


def test_verdicts_are_the_same_contained_or_not(lab):
    lab.write(test_outcomes=OUTCOMES)
    plain = lab.run("test_outcomes.py")
    contained = lab.run("test_outcomes.py", "--isolate-files")
    lab.write(
        conftest="import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    hazard = lab.run("test_outcomes.py", "--isolate-files")

    assert len(plain.run.tests) == 13
    assert outcomes(plain) == outcomes(contained) == outcomes(hazard)
    assert "forking is unsafe here" in hazard.output


COMPILES = """
    import pathlib, subprocess, sys, pytest

    # As torch's compiler does where triton is installed.
    SCRIPT = pathlib.Path(__file__).parent / "torch" / "_inductor" / "compile_worker" / "__main__.py"
    compilers = []

    def start():
        compilers.append(subprocess.Popen([sys.executable, SCRIPT], stdin=subprocess.PIPE))

    def test_starts_the_compiler():
        start()

    def test_compiles_with_it():
        assert compilers[0].poll() is None

    @pytest.mark.world_size(2)
    def test_compiles_in_ranks(world):
        start()
"""


def test_the_workers_of_torchs_compiler_live_on_and_are_no_leftovers(lab):
    script = lab.folder / "torch" / "_inductor" / "compile_worker" / "__main__.py"
    script.parent.mkdir(parents=True)
    script.write_text("import sys, time\nsys.stdin.read()\ntime.sleep(600)\n")

    ended = lab.write(test_compiles=COMPILES).run("--isolate-files", "test_compiles.py")

    assert ended.exit_code == 0, ended.output
    assert not any("left a process" in note for note in ended.run.notes), ended.run.notes
    notes = [note for test in ended.run.tests for note in test.final.notes]
    assert not any("process" in note for note in notes), notes


def test_after_a_failure_the_fixtures_of_the_file_have_time_to_tear_down(lab: Lab) -> None:
    """They had one second, and the next test found the lock that they could not remove."""
    lab.write(
        test_service="""
        import pathlib, time
        import pytest

        LOCK = pathlib.Path("lock")

        @pytest.fixture(scope="module")
        def service():
            LOCK.mkdir()
            yield
            time.sleep(1.5)  # a service that takes longer to stop than the ranks of a broken world have
            LOCK.rmdir()

        def test_bad(service):
            assert 0

        def test_good(service):
            pass
        """
    )

    ended = lab.run("test_service.py", "--isolate-files")

    assert Outcome.FAILED is ended.result("test_bad").outcome
    assert Outcome.PASSED is ended.result("test_good").outcome, ended.output
    assert not (lab.folder / "lock").exists()


def test_workers_of_an_executor_of_the_module_serve_all_of_its_tests(lab):
    lab.write(
        test_executor="""
        import os
        import time
        from concurrent.futures import ProcessPoolExecutor

        EXECUTOR = ProcessPoolExecutor(1)
        STOPPED = ProcessPoolExecutor(1)
        WORKERS = []

        def test_uses_it():
            WORKERS.append(EXECUTOR.submit(os.getpid).result())

        def test_uses_it_as_well():
            assert WORKERS == [EXECUTOR.submit(os.getpid).result()]

        def test_leaves_one_that_is_shut_down():
            STOPPED.submit(time.sleep, 600)
            STOPPED.shutdown(wait=False)
        """
    )
    ended = lab.run(".", "--isolate-files")

    tests = {test.test.name: test.final for test in ended.run.tests}
    assert {Outcome.PASSED} == {result.outcome for result in tests.values()}, ended.output
    leaks = {
        name: len([note for note in result.notes if "process" in note]) for name, result in tests.items()
    }
    assert {"test_uses_it": 0, "test_uses_it_as_well": 0, "test_leaves_one_that_is_shut_down": 1} == leaks
    # Nor is one left at the end of the process, which the run would name.
    assert "which was killed" not in ended.output
