"""Where forking is unsafe, ranks are fresh interpreters: slower, announced, and with the same verdicts."""

import re

import pytest

from disttest.model import Cause, Outcome

TESTS = """
    import os
    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("value", [1, 2])
    def test_works(world, value):
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_crashes(world):
        if world.rank == 1:
            os._exit(0)
        dist.barrier()
"""
THREAD = """
    import threading
    threading.Thread(target=threading.Event().wait, name="at-import", daemon=True).start()
"""
CUDA_STUB = """
    import torch
    torch.cuda.is_initialized = lambda: True
"""


@pytest.mark.parametrize(
    ("start", "hazard"),
    [
        (THREAD, "test_hazard.py starts 1 thread (at-import of threading.Event.wait)"),
        pytest.param(
            CUDA_STUB,
            "CUDA was initialised",
            marks=pytest.mark.thorough("tests/cuda/test_forks.py initialises it"),
        ),
    ],
    ids=["thread", "cuda"],
)
def test_a_hazard_at_import_means_fresh_interpreters(lab, start, hazard):
    ended = lab.write(test_hazard=start + TESTS, test_other="def test_never_collected_in_ranks(): pass").run(
        "."
    )

    assert hazard in ended.output
    assert "come from a clean process instead" in ended.output
    assert [Outcome.PASSED] * 2 == [ended.result(f"test_works[2xgloo-{v}]").outcome for v in (1, 2)], (
        ended.output
    )
    crash = ended.result("test_crashes")
    assert (Outcome.ERROR, "rank 1 of 2 exited with code 0 in call, before it reported") == (
        crash.outcome,
        crash.message,
    )


TORCHS = """
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class TestTorchs(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_one_rank_raises(self):
            if self.rank == 1:
                raise RuntimeError("no such layer")
"""


@pytest.mark.slow("its ranks are new interpreters")
def test_a_rank_that_torch_has_to_spawn_is_reported_with_what_it_raised(lab):
    ended = lab.write(test_torchs=THREAD + TORCHS).run(".")

    result = ended.result("test_one_rank_raises")
    assert (Outcome.FAILED, "rank 1 of 2 failed: RuntimeError: no such layer") == (
        result.outcome,
        result.message,
    )
    assert 'raise RuntimeError("no such layer")' in result.ranks[1].details
    # torch ends the ranks that are still starting when one has failed.
    assert result.ranks[0].outcome in (Outcome.PASSED, None)


SETS = """
    import os

    class Value:
        def __init__(self, text):
            self.text = text
        def __repr__(self):
            return self.text

    values = [Value(text) for text in {"anna", "bert", "carl", "dora", "emil", "frida", "gustav", "hans"}]
    here, there = [os.getpid()], [1]

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("value", values)
    def test_set(world, value):
        everybody = [None] * world.size
        dist.all_gather_object(everybody, value.text)
        assert everybody == [value.text] * world.size

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("value", [os.getpid()], ids=["pid"])
    def test_pid(world, value):
        raise AssertionError("must not run")
"""


@pytest.mark.parametrize(
    "way", ["command", pytest.param("pytest", marks=pytest.mark.thorough("the other way shows it"))]
)
def test_interpreters_have_one_hash_seed_and_ranks_that_collected_other_tests_do_not_run_them(lab, way):
    lab.write(test_sets=THREAD + TESTS.partition("@pytest")[0] + SETS)
    clean = {"PYTHONHASHSEED": "random"}
    ended = (
        lab.run("run", "test_sets.py", **clean) if way == "command" else lab.pytest("test_sets.py", **clean)
    )

    by_name = {test.test.name: test.final for test in ended.run.tests}
    other = by_name.pop("test_pid[2xgloo-pid]")
    assert [Outcome.PASSED] * 8 == [result.outcome for result in by_name.values()], ended.output
    assert (Outcome.ERROR, 1) == (other.outcome, other.culprit)
    assert re.fullmatch(
        r"rank 1 of 2 was given up in setup, before it reported: it did not collect the same test as rank 0: "
        r"it has value=\d+, rank 0 has value=\d+",
        other.message,
    ), other.message


def test_a_rank_that_can_not_collect_is_an_infrastructure_error(lab):
    only_once = """
    import os, pathlib, threading
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    marker = pathlib.Path(__file__).with_suffix(".once")
    if marker.exists():
        raise ImportError("only imports once")
    marker.touch()
"""
    ended = lab.write(test_once=only_once + TESTS).run("test_once.py", "--", "-k", "works and 1")

    result = ended.result("test_works[2xgloo-1]")
    assert Outcome.ERROR is result.outcome
    assert "before it was ready" in result.message
    assert "only imports once" in result.details


IN_FORK_SERVER = """
    import os
    import signal
    import warnings

    import psutil
    import pytest
    import torch.distributed as dist

    @pytest.fixture(scope="module")
    def fork_server():
        return psutil.Process().parent().parent()

    @pytest.mark.world_size(2)
    @pytest.mark.fresh_world
    @pytest.mark.parametrize("number", [1, 2])
    def test_comes_from_the_one_clean_process(world, fork_server, number, tmp_path, world_tmp_path):
        assert "disttest.runtime.controller.fork_server" in fork_server.cmdline()
        assert fork_server.num_threads() == 1
        (world_tmp_path / str(world.rank)).write_text(str(fork_server.pid))
        dist.barrier()
        assert len({path.read_text() for path in world_tmp_path.iterdir()}) == 1
        print("the word is xyzzy-secret")

    @pytest.mark.world_size(2)
    @pytest.mark.fresh_world
    def test_kills_its_world(world):
        if world.rank == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    @pytest.mark.world_size(2)
    def test_after_it(world):
        dist.barrier()
"""


def test_worlds_of_a_clean_process_are_worlds_like_all_others(lab):
    """Its torch is imported once, warnings are errors there too, values are hidden, and a lost world is replaced."""
    (lab.folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")

    ended = lab.write(test_hazard=THREAD + IN_FORK_SERVER).run(".", "--mask", "xyzzy-secret")

    for name in (
        "test_comes_from_the_one_clean_process[2xgloo-1]",
        "test_comes_from_the_one_clean_process[2xgloo-2]",
    ):
        assert ended.result(name).outcome is Outcome.PASSED, ended.output
        assert "the word is ***" in ended.log(name, 0)
    killed = ended.result("test_kills_its_world")
    assert (Outcome.ERROR, Cause.INFRASTRUCTURE) == (killed.outcome, killed.cause)
    assert "ended with SIGKILL before it judged the test" in killed.message
    assert ended.result("test_after_it").outcome is Outcome.PASSED
    assert 1 == ended.exit_code or 7 == ended.exit_code


STORE = """
    import torch.distributed as dist
    store = dist.TCPStore("localhost", 0, 1, True)
"""
COUNTED = """
    import os, pathlib
    import pytest
    import torch.distributed as dist

    with open(pathlib.Path(__file__).with_suffix(".imports"), "a") as file:
        file.write(f"{os.getpid()}\\n")

    @pytest.mark.world_size(2)
    @pytest.mark.fresh_world
    @pytest.mark.parametrize("number", range(2))
    def test_fresh(world, number):
        dist.barrier()
        assert number < 1
"""


def _imports(lab, name):
    return len((lab.folder / f"{name}.imports").read_text().splitlines())


def _outcomes(ended, name):
    return [ended.result(f"{name}.py::test_fresh[2xgloo-{number}]").outcome for number in range(2)]


@pytest.mark.slow("its ranks are new interpreters")
def test_only_the_file_that_is_to_blame_loses_forking(lab):
    """The others are imported by the controller and once more by a clean process, for however many worlds and ranks."""
    ordinary = "def test_ordinary(): pass"
    lab.write(test_clean=COUNTED, test_store=STORE + COUNTED, test_ordinary=ordinary)
    ended = lab.run(".", "--isolate-files")

    assert "test_store.py starts 1 thread (pt_tcpstore_uv of libtorch_cpu.so)" in ended.output
    assert "Tests of other files are not affected" in ended.output
    assert 1 == sum("forking is unsafe" in note for note in ended.run.notes)
    assert 1 == len([line for line in ended.output.splitlines() if ": forking is unsafe" in line])
    assert ended.result("test_ordinary").outcome is Outcome.PASSED
    for name in ("test_clean", "test_store"):
        assert [Outcome.PASSED, Outcome.FAILED] == _outcomes(ended, name), ended.output
    assert 2 == _imports(lab, "test_clean")
    assert 1 + 2 * 2 == _imports(lab, "test_store")


@pytest.mark.slow("its ranks are new interpreters")
def test_a_module_that_two_files_share_is_found_in_both(lab):
    """The controller blames the one that imports it first; without that one, the other is to blame."""
    sharing = "    import shared" + COUNTED
    ended = lab.write(shared=THREAD, test_a=sharing, test_b=sharing, test_c=COUNTED).run(".")

    assert "test_a.py starts 1 thread" in ended.output
    assert "test_b.py starts 1 thread" in ended.output
    for name in ("test_a", "test_b", "test_c"):
        assert [Outcome.PASSED, Outcome.FAILED] == _outcomes(ended, name), ended.output
    assert 3 >= _imports(lab, "test_c")


def test_what_a_conftest_starts_is_named_and_nothing_is_collected_in_vain(lab):
    ended = lab.write(conftest=THREAD, test_clean=COUNTED).run(".")

    assert "a plugin or conftest starts 1 thread (at-import of threading.Event.wait)" in ended.output
    assert [Outcome.PASSED, Outcome.FAILED] == _outcomes(ended, "test_clean"), ended.output
    assert 1 + 2 * 2 == _imports(lab, "test_clean")


SERVER = """
    import socket, threading

    class ServerStatusDB:
        def run_server(self):
            while True:
                self.socket.accept()

    ServerStatusDB.__module__ = ServerStatusDB.run_server.__module__ = "pytest_rerunfailures"
    database = ServerStatusDB()
    database.socket = socket.create_server(("localhost", 0))
    threading.Thread(target=database.run_server, daemon=True).start()
"""
POOL = """
    import numpy
    numpy.ones((400, 400)) @ numpy.ones((400, 400))
"""
MONITOR = """
    import threading, types, sys

    class Monitor(threading.Thread):
        def __init__(self):
            super().__init__(daemon=True, name="tqdm")
            self.was_killed = threading.Event()
            self.start()

        def run(self):
            self.was_killed.wait()

        def exit(self):
            self.was_killed.set()
            self.join()

    std = sys.modules["tqdm.std"] = types.ModuleType("tqdm.std")
    std.tqdm = type("tqdm", (), {"monitor": Monitor()})
"""
GLOO = """
    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    kept = dist.new_group([0])
    dist.destroy_process_group()
"""
BESIDE = """
    import os
    import numpy, pytest
    import torch.distributed as dist

    imported_by = os.getpid()

    @pytest.mark.world_size(2)
    @pytest.mark.fresh_world
    @pytest.mark.parametrize("number", range(8))
    def test_computes(world, number):
        assert os.getpid() != imported_by
        matrix = numpy.random.default_rng(number).random((400, 400))
        product = matrix @ numpy.linalg.inv(matrix)
        assert numpy.allclose(product, numpy.eye(400), atol=1e-6)
        dist.barrier()
"""


def test_threads_that_a_fork_can_do_without_do_not_cost_forking(lab):
    """Sixteen ranks of eight worlds are forked beside them, use their libraries, and compute the right result."""
    plugins = {"server": SERVER, "pool": POOL, "monitor": MONITOR, "gloo": GLOO}
    lab.write(test_beside=BESIDE, **{f"early_{name}": start for name, start in plugins.items()})
    words = [word for name in plugins for word in ("-p", f"early_{name}")]
    ended = lab.run("test_beside.py", "--", *words, OPENBLAS_NUM_THREADS="4")

    assert ended.exit_code == 0, ended.output
    assert "forking is unsafe" not in ended.output


TORCH = """
    import os
    import torch

    assert "1" == os.environ["OMP_NUM_THREADS"]
    torch.ones(600, 600) @ torch.ones(600, 600)
"""


def test_what_is_imported_before_our_plugin_has_one_thread(lab):
    """A filter of warnings imports numpy, a plugin of the command line torch; with threads, ranks would be interpreters."""
    (lab.folder / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error::numpy.exceptions.VisibleDeprecationWarning\n"
    )
    lab.write(early=TORCH, test_beside=BESIDE)
    ended = lab.run("test_beside.py", "--", "-p", "early", OMP_NUM_THREADS="4")

    assert ended.exit_code == 0, ended.output
    assert "forking is unsafe" not in ended.output


@pytest.mark.slow("its ranks are new interpreters")
def test_ranks_collect_where_pytest_was_started(lab):
    """A conftest has changed the directory by then; arguments are relative to the first one."""
    (lab.folder / "data").mkdir()
    test = """
    import os
    import pytest

    @pytest.mark.world_size(2)
    def test_there():
        assert os.path.basename(os.getcwd()) == "data"
    """
    ended = lab.write(conftest=THREAD + "    import os\n    os.chdir('data')\n", test_there=test).run(
        "test_there.py"
    )

    assert 0 == ended.exit_code, ended.output


@pytest.mark.slow("its ranks are new interpreters")
def test_ranks_that_collect_leave_the_files_of_pytest_and_its_plugins_alone(lab):
    writers = """
    import os

    def pytest_addoption(parser):  # as in pytest-reportlog
        parser.addoption("--report-log", dest="report_log")

    def pytest_configure(config):
        if config.option.report_log:
            open(config.option.report_log, "w").write(str(os.getpid()))

    def pytest_sessionstart(session):
        if os.environ.setdefault("FIRST", str(os.getpid())) == str(os.getpid()):
            session.config.cache.set("first", os.getpid())
            session.config.trace("first" * 10_000)  # more than a buffer, so that all is in the file
"""
    test = """
    import logging
    import os
    import pytest

    logging.getLogger().warning("collected")

    @pytest.mark.world_size(2)
    def test_world():
        logging.getLogger().warning("in a rank")

    def test_ordinary(request):
        logging.getLogger().warning("ran")
        assert str(os.getpid()) == open("report.jsonl").read()
        assert os.getpid() == request.config.cache.get("first", None)
    """
    options = ("--log-file=run.log", "--debug=debug.log", "--report-log=report.jsonl", "--cache-clear")
    ended = lab.write(conftest=THREAD + writers, test_logs=test).run("test_logs.py", "--", *options)

    assert 0 == ended.exit_code, ended.output
    assert ["collected", "ran"] == [
        line.split()[-1] for line in (lab.folder / "run.log").read_text().splitlines()
    ]
    assert "first" * 10_000 in (lab.folder / "debug.log").read_text()


def test_worlds_of_a_clean_process_have_the_plugins_of_the_run(lab):
    (lab.folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:disttest.hints\n")
    lab.write(
        test_thread=THREAD
        + """
    import pytest

    @pytest.mark.world_size(1)
    def test_works():
        pass

    @pytest.mark.world_size(1)
    def test_fails():
        raise OSError("Address already in use")
"""
    )
    ended = lab.run(".", "-p", "no:disttest.html")

    assert ended.result("test_works").outcome is Outcome.PASSED, ended.output
    # `disttest.hints` would explain the message, in the world and not in the rank.
    failed = ended.result("test_fails")
    assert (Outcome.FAILED, {}) == (failed.outcome, failed.sections), failed.message


@pytest.mark.slow("its ranks are new interpreters")
def test_ranks_import_no_file_but_their_own_of_those_that_the_command_names(lab):
    own = """
    import sys
    import pytest

    @pytest.mark.world_size(1)
    @pytest.mark.parametrize("value", [1, 2])
    def test_own(world, value):
        assert ("test_thread" in sys.modules) is (__name__ == "test_thread") is ("test_good" not in sys.modules)
"""
    broken = "raise ImportError('planted')"
    (lab.folder / "package").mkdir()
    (lab.folder / "package" / "__init__.py").touch()
    lab.write(test_thread=THREAD + own, test_good=own, test_broken=broken)
    lab.write(**{"package/test_inside": own, "package/test_broken_too": broken})
    files = ("test_good.py", "package", "package/test_broken_too.py", "test_broken.py")
    ended = lab.run("test_thread.py::test_own[1xgloo-2]", *files, "--", "--keep-duplicates")

    assert "Tests of other files are not affected" in ended.output
    own_tests = [
        f"{file}::test_own[1xgloo-{n}]" for file in ("test_good.py", "package/test_inside.py") for n in (1, 2)
    ]
    assert dict.fromkeys(["test_thread.py::test_own[1xgloo-2]", *own_tests], Outcome.PASSED) == {
        each.test.nodeid: each.final.outcome for each in ended.run.tests
    }, ended.output
