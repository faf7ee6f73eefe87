"""What people do with pytest works with world tests too."""

import getpass
import re
import xml.etree.ElementTree as ET

import pytest
from lab import Lab

from disttest.model import Cause, Outcome

pytestmark = pytest.mark.forked_runs

SUITE = """
    import logging
    import os
    import pytest
    import torch.distributed as dist

    logging.getLogger("apart").propagate = False

    @pytest.fixture(scope="module")
    def module_value(request):
        value = {"pid": os.getpid(), "uses": 0}
        yield value
        print("module fixture torn down after", value["uses"], "uses in", os.getpid())

    @pytest.fixture(scope="class")
    def class_value():
        return []

    @pytest.mark.world_size(2)
    class TestScopes:
        def test_first(self, world, module_value, class_value):
            module_value["uses"] += 1
            class_value.append(world.rank)
            assert module_value["pid"] == os.getpid()

        def test_second(self, world, module_value, class_value):
            module_value["uses"] += 1
            assert class_value == [world.rank], "the class fixture lives through the class"
            assert module_value["uses"] == 2, "the module fixture lives through the module"

    @pytest.mark.world_size(1, 2)
    @pytest.mark.parametrize("value", [10, 20])
    def test_parametrized(world, value):
        assert value in (10, 20)

    @pytest.mark.world_size(2)
    def test_directories(world, tmp_path, world_tmp_path):
        (tmp_path / "mine").write_text(str(world.rank))
        (world_tmp_path / f"rank{world.rank}").write_text("here")
        dist.barrier()
        assert sorted(p.name for p in world_tmp_path.iterdir()) == ["rank0", "rank1"]
        assert (tmp_path / "mine").read_text() == str(world.rank)

    @pytest.mark.world_size(2)
    def test_fails(world):
        assert world.rank == 0

    @pytest.mark.world_size(2)
    @pytest.mark.skipif(True, reason="never here")
    def test_skipped(world):
        pass

    @pytest.mark.world_size(2)
    def test_capfd_and_caplog(world, capfd, caplog):
        os.write(1, b"low\\n")
        assert capfd.readouterr().out == "low\\n"
        logging.getLogger("apart").warning("on its own")
        logging.getLogger("usual").warning("to the root")
        # From version 9.2 on pytest also captures records of loggers that do not propagate.
        own = ["on its own"] if pytest.version_tuple >= (9, 2) else []
        assert caplog.messages == [*own, "to the root"]

    @pytest.mark.world_size(2)
    def test_capsys(world, capsys):
        print("seen by the test")
        assert capsys.readouterr().out == "seen by the test\\n"

    @pytest.mark.world_size(2)
    def test_environment(monkeypatch):
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            assert os.environ[name]
        assert os.environ["WORLD_SIZE"] == "2"
        dist.init_process_group("gloo")          # env://, as under torchrun
        assert dist.get_world_size() == 2
        dist.barrier()
        dist.destroy_process_group()

    def test_ordinary(tmp_path):
        assert "RANK" not in os.environ

    def test_ordinary_fails():
        assert 0

    def test_ordinary_asks_for_a_world(world):
        pass
"""


@pytest.fixture(scope="module")
def suite(module_lab):
    return module_lab.write(test_suite=SUITE)


@pytest.fixture(scope="module")
def ended(suite):
    return suite.pytest("test_suite.py", "--junitxml=own.xml", "--durations=3", "-v", results="plain")


def test_outcomes(ended):
    bad = {test.test.name for test in ended.run.bad}

    assert {"test_fails[2xgloo]", "test_ordinary_fails", "test_ordinary_asks_for_a_world"} == bad
    assert 1 == ended.exit_code
    assert "@pytest.mark.world_size" in ended.result("test_ordinary_asks_for_a_world").message


def test_ids_carry_world_and_backend(ended):
    ids = [test.test.name for test in ended.run.tests if "parametrized" in test.test.name]

    assert [
        "test_parametrized[1xgloo-10]",
        "test_parametrized[1xgloo-20]",
        "test_parametrized[2xgloo-10]",
        "test_parametrized[2xgloo-20]",
    ] == sorted(ids)


def test_module_fixtures_are_torn_down_in_the_rank(ended):
    logs = "".join(path.read_text() for path in (ended.results / "logs").rglob("rank*.log"))

    assert 2 == logs.count("module fixture torn down after 2 uses")


def test_verbose_terminal_and_durations(ended):
    assert "test_suite.py::test_parametrized[1xgloo-10] PASSED" in ended.output
    assert "slowest 3 durations" in ended.output
    assert "rank 1 of 2 failed: assert 1 == 0" in ended.output or "rank 1 of 2 failed: Assert" in ended.output


def test_pytests_own_junitxml(ended):
    root = ET.parse(ended.results.parent / "own.xml").getroot()
    failed = {case.get("name") for case in root.iter("testcase") if case.find("failure") is not None}

    assert "test_fails[2xgloo]" in failed
    assert len(list(root.iter("testcase"))) == len(ended.run.tests)


def test_selection_by_keyword_and_node_id(suite):
    by_keyword = suite.pytest("test_suite.py", "-k", "2xgloo and parametrized", results="k")
    by_id = suite.pytest("test_suite.py::test_parametrized[1xgloo-10]", results="id")

    assert 2 == len(by_keyword.run.tests)
    assert ["test_suite.py::test_parametrized[1xgloo-10]"] == [test.test.nodeid for test in by_id.run.tests]


def test_last_failed_runs_only_the_failed_ones(suite, ended):
    again = suite.pytest("test_suite.py", "--lf", results="lf")

    assert {test.test.name for test in ended.run.bad} == {test.test.name for test in again.run.tests}


def test_maxfail_stops_the_run_and_says_so(suite):
    stopped = suite.pytest("test_suite.py", "-x", results="x")

    assert 1 == stopped.exit_code
    assert "stopping after 1 failures" in stopped.output
    (failed,) = stopped.run.bad
    assert Cause.INFRASTRUCTURE is not failed.final.cause
    left_out = [t.final for t in stopped.run.tests if t.final.outcome is Outcome.NOT_RUN]
    assert left_out
    assert {"not run: stopping after 1 failures"} == {final.message for final in left_out}
    assert f"{len(left_out)} not run" in (stopped.results / "summary.md").read_text()
    assert ("1", "0") == (stopped.junit().get("failures"), stopped.junit().get("errors"))
    folders = {path.name for path in (stopped.results / "logs").iterdir()}
    assert folders <= {test.test.slug for test in stopped.run.tests if test.final.ranks}


def test_collect_only_lists_and_runs_nothing(suite):
    listed = suite.pytest("test_suite.py", "--co", "-q", results="co")

    assert "test_suite.py::test_parametrized[2xgloo-20]" in listed.output
    assert 0 == listed.exit_code
    assert not (listed.results / "logs").exists()


def test_without_a_path_pytest_finds_the_tests(lab):
    for folder in ("mine", "other"):
        (lab.folder / folder).mkdir()
        (lab.folder / folder / f"test_{folder}.py").write_text(f"def test_{folder}():\n    pass\n")
    everything = [test.test.nodeid for test in lab.run("run").run.tests]
    (lab.folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["mine"]\n')
    chosen = [test.test.nodeid for test in lab.run("run").run.tests]

    assert ["mine/test_mine.py::test_mine", "other/test_other.py::test_other"] == everything
    assert ["mine/test_mine.py::test_mine"] == chosen


def test_marks_select(suite):
    only = suite.pytest("test_suite.py", "-m", "world_size", results="m")

    assert all(test.test.world is not None for test in only.run.tests)


def test_world_sizes_option_selects_and_names_what_is_skipped(suite):
    ended = suite.pytest(
        "test_suite.py", "--disttest-world-sizes=1", "-k", "parametrized or capsys", results="ws"
    )

    assert Outcome.PASSED is ended.result("test_parametrized[1xgloo-10]").outcome
    skipped = ended.result("test_capsys[no-world]")
    assert "none of the run's world sizes (1) suits world_size(2)" == skipped.message


def test_disabled_plugin_leaves_no_trace(suite):
    suite.write(
        test_plain="""
        def test_untouched():
            import sys
            assert not any(name.startswith("disttest.runtime") for name in sys.modules)
        """
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:disttest", "-q", "test_plain.py"],
        cwd=suite.folder,
        env=suite.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stdout


def test_what_ranks_print_in_tests_that_pass_is_shown_on_request(lab):
    lab.write(
        test_prints="""
            import pytest

            @pytest.mark.world_size(2)
            def test_prints(world):
                print("hello from", world.rank)

            @pytest.mark.world_size(2)
            def test_silent(world):
                pass
        """
    )
    shown = lab.run("test_prints.py", "--", "-rP").output
    for rank in (0, 1):
        # With torch 2.9 gloo says first that it is connected.
        told = rf"-- Captured output of rank {rank} --+\n(\[Gloo\] .*\n)?hello from {rank}\n"
        assert re.search(told, shown), shown
    assert "test_silent[2xgloo] ____" not in shown
    assert "hello from" not in lab.run("test_prints.py").output


def test_what_a_failed_test_without_a_world_has_printed_is_shown(lab):
    lab.write(
        test_prints="""
            import logging

            def test_prints():
                print("test_prints.py:1:", "hello".upper())
                logging.warning("careful".upper())
                assert 0
        """
    )
    ended = lab.run("test_prints.py")
    for text in (ended.output, (ended.results / "junit.xml").read_text()):
        assert "test_prints.py:1: HELLO" in text
        assert "CAREFUL" in text
    assert "test_prints.py:7: error" in ended.output


@pytest.mark.parametrize(("asked", "code"), [("shouldstop", 2), ("shouldfail", 1)])
def test_a_hook_in_a_rank_can_end_the_run(lab, asked, code):
    lab.write(
        conftest=f"""
            import pytest

            @pytest.hookimpl(wrapper=True)
            def pytest_runtest_makereport(item, call):
                report = yield
                if report.when == "call" and "test_first" in item.nodeid:
                    item.session.{asked} = "the machine is broken"
                return report
        """,
        test_ends="""
            import pytest
            pytestmark = pytest.mark.world_size(2)

            def test_first():
                pass

            def test_next():
                assert not "it ran"
        """,
    )
    ended = lab.run("test_ends.py", "--slots", "2")

    assert code == ended.exit_code, ended.output
    assert "test_first[2xgloo] ended the run: rank" in ended.output
    assert "the machine is broken" in ended.output
    assert (Outcome.PASSED, Outcome.NOT_RUN) == (
        ended.result("test_first").outcome,
        ended.result("test_next").outcome,
    )


@pytest.mark.slow("two runs")
@pytest.mark.parametrize("skips", [False, True])
def test_stepwise_continues_at_the_first_test_that_has_not_passed(lab, skips):
    """Worlds run before ordinary tests: the one that failed is not the first one."""
    lab.write(
        test_steps="""
            import os
            import pytest

            def test_ordinary():
                assert not "passed"

            @pytest.mark.world_size(1)
            def test_world(world):
                assert os.environ.get("FIXED")
        """
    )
    words = ("test_steps.py", "--", "--stepwise", *["--stepwise-skip"] * skips)
    assert lab.run(*words).exit_code
    ended = lab.run(*words, FIXED="1")

    assert ended.exit_code
    assert Outcome.FAILED is ended.result("test_ordinary").outcome


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="a fixture of pytest 9")
def test_what_ranks_print_in_subtests_is_in_their_logs_and_shown_on_request(lab):
    lab.write(
        test_prints="""
            import pytest

            @pytest.mark.world_size(1)
            def test_prints(world, subtests):
                with subtests.test("part"):
                    print("hello")
        """
    )

    ended = lab.run("test_prints.py", "--", "-rP")

    assert "hello" in ended.log("test_prints", 0)
    assert "hello" in ended.output


def test_what_ranks_print_is_shown_while_they_run_with_the_rank_in_front(lab):
    lab.write(
        test_prints="""
            import pathlib, time
            import pytest

            @pytest.mark.world_size(2)
            def test_prints(world):
                print("hello from", world.rank, flush=True)
                while not pathlib.Path("seen").exists():
                    time.sleep(0.01)
                print("without an end", end="")

            @pytest.mark.world_size(2)
            def test_prints_more(world):
                print("more from", world.rank)
        """
    )
    run = lab.start("test_prints.py", "-s")
    shown = ""
    while not {"[rank 0] hello from 0", "[rank 1] hello from 1"} <= set(shown.splitlines()):
        line = run.stdout.readline()
        assert line, shown
        shown += line
    (lab.folder / "seen").touch()
    shown += run.communicate(timeout=60)[0]
    assert 0 == run.returncode, shown
    assert {"[rank 0] without an end", "[rank 1] without an end"} <= set(shown.splitlines())
    assert {"[rank 0] more from 0", "[rank 1] more from 1"} <= set(shown.splitlines())


EACH_KIND = """
    import pytest
    import torch.distributed as dist
    from disttest.testing import MultiProcessTestCase

    def test_ordinary():
        pass

    @pytest.mark.world_size(2)
    def test_warm(world):
        dist.barrier()

    @pytest.mark.fresh_world
    @pytest.mark.world_size(2)
    def test_fresh(world):
        dist.barrier()

    class TestHosted(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_processes(self):
            assert self.rank in (0, 1)
"""


@pytest.mark.parametrize("start", ["run", "pytest"])
def test_warnings_that_are_errors_are_not_ours(lab, start):
    lab.write(test_each=EACH_KIND)
    (lab.folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")

    ended = getattr(lab, start)("test_each.py")

    assert ended.exit_code == 0, ended.output
    assert "Traceback" not in ended.output
    assert [Outcome.PASSED] * 4 == [test.final.outcome for test in ended.run.tests]


def test_a_folder_of_an_earlier_session_that_is_in_use_ends_no_run(lab):
    """pytest warns about it after all tests; -W error makes an exception of that."""
    for number in range(5):
        (lab.folder / "root" / f"pytest-of-{getpass.getuser()}" / f"pytest-{number}").mkdir(parents=True)
    lab.write(
        conftest="""
            import warnings
            import _pytest.pathlib
            import pytest

            def in_use(path):
                warnings.warn(pytest.PytestWarning(f"(rm_rf) error removing {path}: Directory not empty"))

            _pytest.pathlib.rm_rf = in_use
        """,
        test_one="""
            import pytest

            @pytest.mark.world_size(1)
            def test_one(world):
                pass
        """,
    )
    root = lab.folder / "root"
    ended = lab.run("test_one.py", "--", "-W", "error", PYTEST_DEBUG_TEMPROOT=str(root))

    assert ended.exit_code == 0, ended.output
    assert [*root.glob("*/garbage-*")], "pytest has removed nothing"


KEEPS = """
    import gc
    import torch

    class Kept:
        pass

    KEPT = Kept()

    def test_keeps():
        assert gc.isenabled() and gc.get_freeze_count() == 0
        assert any(each is KEPT for each in gc.get_objects(generation=2))
"""


def test_what_was_imported_is_not_looked_through_for_garbage(lab):
    lab.write(test_keeps=KEEPS)
    ended = Lab(lab.folder).run("run", "test_keeps.py")  # in new processes

    assert ended.exit_code == 0, ended.output


# As Python 3.12 does, of its own strings.
FREEZES_A_LITTLE = """
    import gc
    gc.freeze()
"""
SHARES = """
    import gc
    import pytest

    @pytest.mark.world_size(1)
    def test_rank(world):
        assert gc.get_freeze_count() > 50_000  # else each rank copies it all, when it looks for garbage first
"""


def test_what_ranks_share_is_not_looked_through_for_garbage_by_any_of_them(lab):
    lab.write(test_shares=SHARES, sitecustomize=FREEZES_A_LITTLE)

    for start in (Lab(lab.folder).run, lab.pytest):
        ended = start("test_shares.py", PYTHONPATH=f"{lab.folder}:{lab.environ.get('PYTHONPATH', '')}")
        assert ended.exit_code == 0, ended.output


@pytest.mark.parametrize("way", ["command", "pytest"])
def test_the_status_that_a_hook_sets_at_the_end_counts(lab, way):
    lab.write(
        conftest="""
        def pytest_sessionfinish(session):
            session.exitstatus = 1  # unused snapshots, say
    """,
        test_good="""
        import pytest

        @pytest.mark.world_size(2)
        def test_good(world):
            pass
    """,
    )

    ended = lab.run("test_good.py") if way == "command" else lab.pytest("test_good.py")

    assert ended.exit_code == 1, ended.output
