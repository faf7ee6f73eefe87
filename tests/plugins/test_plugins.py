"""What the table in docs/plugins.md says of each plugin, with the real one installed."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dap import DebugClient
from lab import Ended, Lab

from disttest.model import Outcome

ROOT = Path(__file__).parents[2]
UNSAFE = "forking is unsafe here"


def outcomes(ended: Ended) -> dict[str, Outcome]:
    return {test.test.name: test.final.outcome for test in ended.run.tests}


def all_passed(ended: Ended) -> bool:
    assert ended.run.tests, ended.output
    return {Outcome.PASSED} == set(outcomes(ended).values())


def test_the_table_has_each_plugin_with_the_version_that_is_tested() -> None:
    table = dict(
        re.findall(r"^\| ([\w-]+) ([\d.]+) \|", (ROOT / "docs" / "plugins.md").read_text(), re.MULTILINE)
    )
    lock = dict(
        re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements" / "plugins.lock").read_text(), re.MULTILINE)
    )
    constraints = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    wanted = [
        line
        for line in (ROOT / "requirements" / "plugins.in").read_text().splitlines()
        if not line.startswith("#") and line != "coverage"
    ]

    assert table == {name: lock[name] for name in wanted} | {"hypothesis": constraints["hypothesis"]}
    tests = set(re.findall(r"^def test_(\w+)\(", Path(__file__).read_text(), re.MULTILINE))
    assert {name.replace("-", "_") for name in table} <= tests


# --- what would be lost without a word

COVERED = """
    import pytest
    import torch.distributed as dist
    from disttest.testing import MultiProcessTestCase

    @pytest.mark.world_size(2)
    def test_branches(world):
        if world.rank == 1:
            here = "one"
        else:
            here = "zero"
        dist.barrier()
        assert here

    @pytest.mark.world_size(2)
    def test_fresh():
        assert True

    class TestOwn(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_in_ranks(self):
            if self.rank == 1:
                here = "one"
                assert here

    def test_ordinary():
        assert True
"""
THREAD = """
    import threading
    threading.Thread(target=threading.Event().wait, name="at-import", daemon=True).start()
"""


@pytest.mark.plugins("pytest-cov", "coverage")
def test_pytest_cov(lab: Lab) -> None:
    lab.write(test_covered=COVERED)
    options = ("--cov=.", "--cov-branch", "--cov-context=test", "--cov-report=json")

    ended = lab.run("test_covered.py", "--", *options)

    assert all_passed(ended)
    report = json.loads((lab.folder / "coverage.json").read_text())
    assert 100 == report["totals"]["percent_covered"], ended.output
    contexts = subprocess.run(
        [lab.python, "-c",
         "import coverage; d = coverage.CoverageData(); d.read(); print(*sorted(d.measured_contexts()), sep='\\n')"],
        cwd=lab.folder, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "test_covered.py::test_branches[2xgloo]|run" in contexts
    assert [] == [path.name for path in lab.folder.glob(".coverage.*")], "ranks leave nothing beside it"


@pytest.mark.plugins("pytest-cov", "coverage")
def test_pytest_cov_where_ranks_collect_by_themselves(lab: Lab) -> None:
    lab.write(test_covered=THREAD + COVERED)

    ended = lab.run("test_covered.py", "--", "--cov=.", "--cov-report=json", "-k", "branches or ordinary")

    assert UNSAFE in ended.output
    missing = json.loads((lab.folder / "coverage.json").read_text())["files"]["test_covered.py"][
        "missing_lines"
    ]
    own_class_and_fresh = set(range(19, 33))
    assert set(missing) <= own_class_and_fresh, (missing, ended.output)


@pytest.mark.plugins("coverage")
def test_coverage_run(lab: Lab) -> None:
    lab.write(test_covered=COVERED)
    command = [
        lab.python,
        "-m",
        "coverage",
        "run",
        "--source=.",
        "-m",
        "pytest",
        "-p",
        "disttest",
        "test_covered.py",
    ]

    ran = subprocess.run(
        command, cwd=lab.folder, env=lab.environ, capture_output=True, text=True, timeout=240
    )
    said = subprocess.run(
        [lab.python, "-m", "coverage", "report"], cwd=lab.folder, capture_output=True, text=True, timeout=60
    ).stdout

    assert re.search(r"test_covered.py +\d+ +0 +100%", said), ran.stdout + said


FLAKY = """
    import os
    import pytest
    import torch.distributed as dist

    def attempt(name):
        with open(name, "a") as file:
            file.write("x")
        return os.path.getsize(name)

    @pytest.mark.world_size(2)
    def test_flaky(world):
        if world.rank == 1:
            assert attempt("flaky") > 1, "the real assertion"
        dist.barrier()

    @pytest.mark.flaky(reruns=2)
    @pytest.mark.world_size(2)
    def test_marked(world):
        if world.rank == 1:
            assert attempt("marked") > 2, "of the mark"
        dist.barrier()

    @pytest.mark.flaky(reruns=0)
    @pytest.mark.world_size(2)
    def test_never_again(world):
        assert world.rank == 0, "once"

    def test_ordinary_flaky():
        assert attempt("ordinary") > 1
"""


@pytest.mark.plugins("pytest-rerunfailures", "pytest-xdist", "execnet")
def test_pytest_rerunfailures(lab: Lab) -> None:
    lab.write(test_flaky=FLAKY)

    ended = lab.run("test_flaky.py", "--", "--reruns", "1")

    assert UNSAFE not in ended.output, "its thread is for pytest-xdist, which distributes nothing here"
    attempts = {test.test.name: [each.outcome for each in test.attempts] for test in ended.run.tests}
    failed, passed = Outcome.FAILED, Outcome.PASSED
    assert attempts == {
        "test_flaky[2xgloo]": [failed, passed],
        "test_marked[2xgloo]": [failed, failed, passed],
        "test_never_again[2xgloo]": [failed],
        "test_ordinary_flaky": [failed, passed],
    }, ended.output
    assert "rank 1 of 2 failed: AssertionError: the real assertion" in ended.output
    assert 1 == ended.exit_code


SEEDS = """
    import random
    import numpy
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_seeds(world):
        mine = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
        all_of_them = [None, None]
        dist.all_gather_object(all_of_them, mine)
        assert all_of_them[0] == all_of_them[1]
        print("drew", mine)
"""


@pytest.mark.parametrize("thread", ["", THREAD], ids=["forked", "collecting"])
@pytest.mark.plugins("pytest-randomly")
def test_pytest_randomly(lab: Lab, thread: str) -> None:
    lab.write(test_seeds=thread + SEEDS)

    ended = lab.run("test_seeds.py", *(["--", "--randomly-seed=7"] if thread else []))

    assert not thread or UNSAFE in ended.output
    assert all_passed(ended), ended.output


DRAWN = """
    import pytest
    import torch
    from hypothesis.stateful import RuleBasedStateMachine, rule
    import torch.distributed as dist
    from hypothesis import assume, given, settings, strategies as st

    from disttest.testing import current_world

    @pytest.mark.world_size(2)
    @settings(max_examples=30)
    @given(numbers=st.lists(st.integers(-1000, 1000), min_size=1, max_size=5))
    def test_same(world, numbers):
        assume(sum(numbers) != 3)
        everywhere = [None, None]
        dist.all_gather_object(everywhere, numbers)
        assert everywhere[0] == everywhere[1]

    @pytest.mark.world_size(2)
    @given(number=st.integers(0, 1000))
    def test_finds(world, number):
        dist.all_reduce(torch.ones(1))
        assert world.rank == 0 or number < 3, "too large"

    @pytest.mark.world_size(2)
    @given(number=st.integers(0, 1000))
    def test_assumes(world, number):
        assume(world.rank == 0 or number % 2)
        dist.all_reduce(torch.ones(1))

    @pytest.mark.world_size(2)
    @given(number=st.integers(0, 1000))
    def test_leaves_others_waiting(world, number):
        assert world.rank == 0 or number < 3, "too large"
        dist.all_reduce(torch.ones(1))

    class Machine(RuleBasedStateMachine):
        @rule(number=st.integers(0, 1000))
        def draws(self, number):
            current_world()
            everywhere = [None, None]
            dist.all_gather_object(everywhere, number)
            assert everywhere[0] == everywhere[1]

    @pytest.mark.world_size(2)
    class TestMachine(Machine.TestCase):
        settings = settings(max_examples=5)
"""


@pytest.mark.plugins("pytest-mock")
def test_hypothesis(lab: Lab) -> None:
    ended = lab.write(test_drawn=DRAWN).run("test_drawn.py", "--timeout", "60")

    assert Outcome.PASSED is ended.result("test_same").outcome, ended.output
    assert Outcome.PASSED is ended.result("runTest").outcome, ended.output
    found = ended.result("test_finds")
    assert "rank 1 of 2 failed: AssertionError: too large" in found.message, ended.output
    assert 1 == ended.output.count("Failing test case: test_finds("), ended.output
    assert "number=3," in found.details
    assert [Outcome.PASSED, Outcome.FAILED] == [rank.outcome for rank in found.ranks]
    waiting = ended.result("test_leaves_others_waiting")
    assert "rank 1 of 2 failed: AssertionError: too large" in waiting.message
    assert 1 == waiting.details.count("Falsifying example: test_leaves_others_waiting(")


@pytest.mark.plugins("pytest-mock")
def test_what_hypothesis_says_at_the_end(lab: Lab) -> None:
    lab.write(
        test_drawn=DRAWN,
        test_other="import pytest\n\n@pytest.mark.world_size(2)\ndef test_other(world): pass\n",
        conftest="""
            import sys

            def pytest_unconfigure():
                print("hypothesis is", "used" if "hypothesis" in sys.modules else "not used")
        """,
    )
    used = lab.run("test_drawn.py", "-k", "same", "--", "--hypothesis-show-statistics")
    unused = lab.run("test_other.py")

    assert "Hypothesis Statistics" in used.output
    assert "30 passing" in used.output, used.output
    assert "hypothesis is not used" in unused.output, "its plugin has imported it for nothing"


@pytest.mark.plugins("pytest-xdist", "execnet")
def test_pytest_xdist(lab: Lab) -> None:
    lab.write(test_mixed=MIXED)
    (lab.folder / "pytest.ini").write_text("[pytest]\naddopts = -n 2\n")

    guarded = lab.run("test_mixed.py", "--", "-k", "passes or ordinary")
    plain = lab.pytest("test_mixed.py", "-k", "passes or ordinary", results="plain")

    assert all_passed(guarded)
    assert 1 == guarded.output.count("disttest: -n 2 of pytest-xdist is ignored: use slots (--slots)")
    assert "1 passed, 1 error" in plain.output, plain.output
    reason = "pytest-xdist cannot run worlds: remove -n"
    errors = plain.output.partition("short test summary")[0]
    assert 1 == errors.count(reason), "once in the errors, and once in pytest's summary of them"
    assert UNSAFE not in plain.output


@pytest.mark.plugins("pytest-xdist", "execnet")
def test_workers_of_xdist_that_are_ranks(lab: Lab) -> None:
    """What examples/adopt/workers comes to by its own way, and by ours; its crash and its hang are not for xdist."""
    shutil.copytree(ROOT / "examples" / "adopt" / "workers", lab.folder / "workers")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    both = {"MASTER_PORT": port, "WORLD_SIZE": "2"}
    own = subprocess.run(
        [
            lab.python,
            "-m",
            "pytest",
            "-p",
            "no:disttest",
            "--dist=each",
            "--tx=2*popen",
            "-k",
            "sum or fails",
        ],
        cwd=lab.folder,
        env=lab.environ | both,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    ours = lab.run("--spmd", "2", "workers", MASTER_PORT=port)

    assert "1 failed, 3 passed" in own.stdout, own.stdout + own.stderr
    assert {
        "test_sum[2xgloo]": Outcome.PASSED,
        "test_fails[2xgloo]": Outcome.FAILED,
        "test_crashes[2xgloo]": Outcome.ERROR,
        "test_hangs[2xgloo]": Outcome.FAILED,
    } == outcomes(ours), ours.output


TIMED = """
    import time
    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_hangs(world):
        if world.rank == 0:
            dist.barrier()
        time.sleep(1000)

    @pytest.mark.timeout(0)
    @pytest.mark.world_size(2)
    def test_off(world):
        dist.barrier()

    @pytest.mark.timeout(200, method="thread", func_only=True)
    @pytest.mark.world_size(2)
    def test_marked(world):
        dist.barrier()
"""


@pytest.mark.plugins("pytest-timeout")
def test_pytest_timeout(lab: Lab) -> None:
    lab.write(test_timed=TIMED)

    ended = lab.run("test_timed.py", "--deadlock", "off", "--", "--timeout", "4")

    assert "rank 1 never joined barrier #1" in ended.result("test_hangs").message
    assert "(timed out after 4 s)" in ended.result("test_hangs").message
    assert [Outcome.PASSED] * 2 == [ended.result(name).outcome for name in ("test_off", "test_marked")]
    limits = {test.test.name: test.test.timeout_s for test in ended.run.tests}
    assert 200 == limits["test_marked[2xgloo]"]
    assert limits["test_off[2xgloo]"] > 1_000_000


LIMITED_HERE = """
    import threading
    import pytest

    def test_hangs():
        threading.Event().wait()

    @pytest.mark.timeout(method="thread")
    def test_hangs_with_a_mark():
        threading.Event().wait()

    @pytest.mark.timeout(1)
    def test_hangs_for_its_own_limit():
        threading.Event().wait()
"""


@pytest.mark.plugins("pytest-timeout")
@pytest.mark.parametrize("of_plugin", ["", "[pytest]\ntimeout = 500\n"])
def test_the_limit_of_the_run_ends_ordinary_tests_beside_pytest_timeout(lab: Lab, of_plugin: str) -> None:
    (lab.folder / "pytest.ini").write_text(of_plugin)
    lab.write(test_limited=LIMITED_HERE)

    ended = lab.run("test_limited.py", "--timeout", "2", "--deadline", "60")

    messages = {test.test.name: test.final.message for test in ended.run.tests}
    assert "timed out after 2 s in call" in messages["test_hangs"], ended.output
    assert "timed out after 2 s in call" in messages["test_hangs_with_a_mark"]
    assert "Timeout (>1.0s) from pytest-timeout" in messages["test_hangs_for_its_own_limit"]


# --- one result a test

MIXED = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_passes(world):
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_fails(world):
        assert world.rank == 0, "the real assertion"

    @pytest.mark.world_size(2)
    def test_skips(world):
        pytest.skip("not today")

    @pytest.mark.world_size(2)
    def test_crashes(world):
        import os
        os._exit(3)

    def test_ordinary():
        pass
"""
USES_ALLURE = """
    @pytest.mark.world_size(2)
    def test_uses_allure(world):
        import allure
        allure.dynamic.title("another title")
        allure.dynamic.parameter("size", world.size)
        with allure.step("a step"):
            allure.attach("text", name="attached")
"""
WORDS = {"passes": "passed", "fails": "failed", "skips": "skipped", "crashes": "failed", "ordinary": "passed"}


def word_of(nodeid: str) -> str:
    return re.search(r"test_(\w+)(\[|$)", nodeid)[1]


@pytest.mark.parametrize("thread", ["", THREAD], ids=["forked", "collecting"])
@pytest.mark.plugins("allure-pytest", "allure-python-commons", "attrs")
def test_allure_pytest(lab: Lab, thread: str) -> None:
    lab.write(test_mixed=thread + MIXED + USES_ALLURE)

    lab.run("test_mixed.py", "--retries", "1", "--", "--alluredir=allure")

    results = [json.loads(path.read_text()) for path in (lab.folder / "allure").glob("*-result.json")]
    found = {word_of(each["name"]): each for each in results}
    assert len(found) == len(results), "one for each test"
    assert {**WORDS, "skips": "skipped", "crashes": "broken", "uses_allure": "passed"} == {
        name: each["status"] for name, each in found.items()
    }
    assert "rank 1 of 2 failed: " in found["fails"]["statusDetails"]["message"]
    assert all(each["historyId"] and each["fullName"].startswith("test_mixed#") for each in results)
    assert found["passes"]["start"] <= found["passes"]["stop"]


@pytest.mark.plugins("pytest-html", "pytest-metadata")
def test_pytest_html(lab: Lab) -> None:
    lab.write(test_mixed=MIXED)

    lab.run("test_mixed.py", "--", "--html=report.html")

    blob = re.search(r'data-jsonblob="([^"]*)"', (lab.folder / "report.html").read_text())[1]
    tests = json.loads(blob.replace("&#34;", '"').replace("&amp;", "&"))["tests"]
    found = {
        word_of(nodeid): [each["result"].lower() for each in results] for nodeid, results in tests.items()
    }
    assert {name: [word] for name, word in WORDS.items()} == found


@pytest.mark.parametrize("thread", ["", THREAD], ids=["forked", "collecting"])
@pytest.mark.plugins("pytest-json-report", "pytest-metadata")
def test_pytest_json_report(lab: Lab, thread: str) -> None:
    lab.write(test_mixed=thread + MIXED)

    lab.run("test_mixed.py", "--", "--json-report")

    tests = json.loads((lab.folder / ".report.json").read_text())["tests"]
    assert WORDS == {word_of(test["nodeid"]): test["outcome"] for test in tests}
    assert len(WORDS) == len(tests)


@pytest.mark.plugins("pytest-sugar", "termcolor")
def test_pytest_sugar(lab: Lab) -> None:
    lab.write(test_mixed=MIXED)

    ended = lab.pytest("test_mixed.py", "--force-sugar")

    assert "INTERNALERROR" not in ended.output
    assert WORDS == {word_of(name): {"error": "failed"}.get(outcome.value, outcome.value)
                     for name, outcome in outcomes(ended).items()}  # fmt: skip
    assert re.search(r"2 failed", ended.output), ended.output


BENCHMARKED = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_barrier(world, benchmark):
        benchmark.pedantic(dist.barrier, rounds=5)

    def test_ordinary(benchmark):
        benchmark.pedantic(lambda: None, rounds=5)
"""


@pytest.mark.plugins("pytest-benchmark", "py-cpuinfo2")
def test_pytest_benchmark(lab: Lab) -> None:
    lab.write(test_speed=BENCHMARKED)

    ended = lab.run("test_speed.py", "--", "--benchmark-json=speed.json")

    assert all_passed(ended)
    names = [each["name"] for each in json.loads((lab.folder / "speed.json").read_text())["benchmarks"]]
    assert ["test_ordinary"] == names
    assert "pytest-benchmark: 1 test with a world not in its table" in " ".join(ended.run.notes)


# --- the rest

ASYNC = """
    import asyncio
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.{mark}
    @pytest.mark.world_size(2)
    async def test_async(world):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        await asyncio.sleep(0)
        work.wait()

    @pytest.mark.{mark}
    @pytest.mark.world_size(2)
    async def test_fails(world):
        await asyncio.sleep(0)
        assert world.rank == 0, "the real assertion"
"""


@pytest.mark.plugins("pytest-asyncio")
def test_pytest_asyncio(lab: Lab) -> None:
    _async(lab, "asyncio")


@pytest.mark.plugins("anyio")
def test_anyio(lab: Lab) -> None:
    (lab.folder / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    _async(lab, "anyio")


def _async(lab: Lab, mark: str) -> None:
    ended = lab.write(test_async=ASYNC.replace("{mark}", mark)).run("test_async.py")

    assert Outcome.PASSED is ended.result("test_async").outcome, ended.output
    assert "rank 1 of 2 failed: AssertionError: the real assertion" in ended.result("test_fails").message


MOCKED = """
    import os
    import pytest

    @pytest.mark.world_size(2)
    def test_mocked(world, mocker):
        mocker.patch("os.getcwd", return_value=str(world.rank))
        assert os.getcwd() == str(world.rank)

    @pytest.mark.world_size(2)
    def test_after(world):
        assert os.path.isabs(os.getcwd())
"""


@pytest.mark.plugins("pytest-mock")
def test_pytest_mock(lab: Lab) -> None:
    ended = lab.write(test_mocked=MOCKED).run("test_mocked.py")

    assert all_passed(ended)


SUBTESTS = """
    import pytest

    @pytest.mark.world_size(2)
    def test_subtests(world, subtests):
        for number in range(3):
            with subtests.test(number=number):
                assert (world.rank, number) != (1, 1), "of one subtest"
"""


@pytest.mark.plugins("pytest-subtests", "attrs")
def test_pytest_subtests(lab: Lab) -> None:
    ended = lab.write(test_subtests=SUBTESTS).run("test_subtests.py")

    assert Outcome.FAILED is ended.result("test_subtests").outcome
    assert "rank 1 of 2 failed" in ended.result("test_subtests").message
    assert "of one subtest" in ended.output


ORDERED = """
    import pytest

    @pytest.mark.order(2)
    @pytest.mark.world_size(2)
    def test_second(world):
        pass

    @pytest.mark.order(1)
    @pytest.mark.world_size(2)
    def test_first(world):
        pass
"""


@pytest.mark.plugins("pytest-order")
def test_pytest_order(lab: Lab) -> None:
    ended = lab.write(test_ordered=ORDERED).run("test_ordered.py", "--slots", "2")

    began = sorted((test.final.started_at_s, test.test.name) for test in ended.run.tests)
    assert ["test_first[2xgloo]", "test_second[2xgloo]"] == [name for _, name in began]


@pytest.mark.plugins("pytest-forked")
def test_pytest_forked(lab: Lab) -> None:
    ended = lab.write(test_mixed=MIXED).run("test_mixed.py", "--", "--forked", "-k", "passes or fails")

    assert {"test_passes[2xgloo]": Outcome.PASSED, "test_fails[2xgloo]": Outcome.FAILED} == outcomes(ended)


MPI = """
    import pytest

    @pytest.mark.mpi
    def test_of_mpi():
        pass

    @pytest.mark.world_size(2)
    def test_of_ours(world):
        assert world.size == 2
"""


@pytest.mark.plugins("pytest-mpi")
def test_pytest_mpi(lab: Lab) -> None:
    ended = lab.write(test_mpi=MPI).run("test_mpi.py")

    assert {"test_of_mpi": Outcome.SKIPPED, "test_of_ours[2xgloo]": Outcome.PASSED} == outcomes(ended)


# --- a debugger

LIMIT_S = 2
DEBUGGED = f"""
    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.timeout({LIMIT_S})
    def test_stops(world):
        secret = 1040 + world.rank
        dist.barrier()
        breakpoint()
        dist.barrier()

    @pytest.mark.world_size(2)
    @pytest.mark.timeout({LIMIT_S})
    def test_fails(world):
        here = 1070 + world.rank
        assert world.rank == 0

    @pytest.mark.world_size(2)
    @pytest.mark.timeout({LIMIT_S})
    def test_in_a_new_world(world):
        assert world.size == 2
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def ended_run(process: subprocess.Popen[str], lab: Lab) -> Ended:
    output, _ = process.communicate(timeout=480)
    return Ended(process.returncode, output, lab.folder / "results")


@pytest.fixture
def debugged(lab: Lab) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a run that waits for a debugger; where the test fails, nobody would come."""
    with contextlib.ExitStack() as started:

        def start(*arguments: str) -> subprocess.Popen[str]:
            process = lab.start("run", *arguments)
            started.callback(process.wait)
            started.callback(process.terminate)
            return process

        yield start


@pytest.mark.plugins("debugpy")
def test_debugpy(lab: Lab, debugged: Callable[..., subprocess.Popen[str]]) -> None:
    port = free_port()
    suite = lab.write(test_suite=DEBUGGED).folder / "test_suite.py"
    line = 1 + suite.read_text().splitlines().index("    dist.barrier()")
    process = debugged("test_suite.py", "--debug-rank", "1", "--debugpy", str(port), "--", "-q")
    # One world stops in a line that has a breakpoint, at breakpoint(), and where a test fails.
    client = DebugClient(port)
    client.attach({str(suite): [line]}, ["uncaught"])
    for place in (line, line + 2):
        thread, frame = client.stopped()
        assert ("test_stops", place, "1041") == (frame["name"], frame["line"], client.value("secret", frame))
        client.ask("continue", threadId=thread)
    thread, frame = client.stopped()
    assert ("test_fails", "1071") == (frame["name"], client.value("here", frame))
    time.sleep(LIMIT_S + 0.5)  # longer than the test may take, and than rank 0 waits once another has failed
    client.ask("continue", threadId=thread)
    client.until_closed()
    client = DebugClient(port)  # the next world listens anew
    client.attach({}, [])
    client.until_closed()
    ended = ended_run(process, lab)

    assert f"disttest: rank 1 of each world waits for a debugger at 127.0.0.1:{port}" in ended.output
    passed, failed = Outcome.PASSED, Outcome.FAILED
    assert {
        "test_stops[2xgloo]": passed,
        "test_fails[2xgloo]": failed,
        "test_in_a_new_world[2xgloo]": passed,
    } == outcomes(ended)
    assert 1 == ended.result("test_fails").culprit
    assert not [note for test in ended.run.tests for note in test.final.notes]


STARTS_RANKS = """
    import torch.testing._internal.common_distributed as common

    class TestProcesses(common.MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_fails(self):
            here = 1070 + self.rank
            assert self.rank == 0
"""


@pytest.mark.plugins("debugpy")
def test_debugpy_in_a_rank_that_a_class_of_torch_starts(
    lab: Lab, debugged: Callable[..., subprocess.Popen[str]]
) -> None:
    port = free_port()
    lab.write(test_hosted=STARTS_RANKS)
    process = debugged("test_hosted.py", "--host", "--debug-rank", "1", "--debugpy", str(port))
    client = DebugClient(port)
    client.attach({}, ["uncaught"])
    thread, frame = client.stopped()
    assert ("test_fails", "1071") == (frame["name"], client.value("here", frame))
    client.ask("continue", threadId=thread)
    client.until_closed()

    failed = ended_run(process, lab).result("test_fails")
    assert (Outcome.FAILED, 1) == (failed.outcome, failed.culprit)


HANGS = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.timeout(2)
    def test_hangs(world):
        if world.rank == {waits}:
            dist.barrier()
"""


@pytest.mark.plugins("debugpy")
@pytest.mark.parametrize(("waits", "leaves"), [(0, True), (1, False)])
def test_limits_hold_when_a_debugger_has_left_or_its_rank_is_done(
    lab: Lab, debugged: Callable[..., subprocess.Popen[str]], *, waits: int, leaves: bool
) -> None:
    port = free_port()
    lab.write(test_hangs=HANGS.format(waits=waits))
    process = debugged("test_hangs.py", "--debugpy", str(port))
    client = DebugClient(port)
    client.attach({}, [])
    if leaves:
        client.ask("disconnect")
    client.until_closed()

    assert "timed out after 2 s" in ended_run(process, lab).result("test_hangs").message


@pytest.mark.plugins("debugpy")
def test_a_debugger_that_cannot_come_is_told_at_once(lab: Lab) -> None:
    lab.write(test_suite=DEBUGGED)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refused = lab.run("run", "test_suite.py", "--debugpy", str(port))

    assert 4 == refused.exit_code
    assert f"--debugpy: no rank can listen at 127.0.0.1:{port} (Address already in use)" in refused.output
