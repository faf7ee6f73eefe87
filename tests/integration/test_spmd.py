"""Launcher mode: suites that were written for ``torchrun -m pytest`` run as they are."""

import socket

import pytest
from lab import Lab

from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

CONFTEST = """
    import os
    import pytest
    import torch.distributed as dist

    os.environ["MASTER_PORT"] = "{port}"  # a port of its own, where no agent listens

    @pytest.fixture(scope="session", autouse=True)
    def group(worker_id):
        assert worker_id == f"gw{{os.environ['RANK']}}"
        dist.init_process_group("gloo")
        yield {{"uses": 0}}
        dist.destroy_process_group()

    def pytest_collection_modifyitems(items):
        size = int(os.environ["WORLD_SIZE"])
        wanted = [(item, item.get_closest_marker("world_size")) for item in items]
        items[:] = [item for item, mark in wanted if mark is None or mark.args[0] == size]
"""
FIRST = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    SIZE = int(os.environ["WORLD_SIZE"])

    @pytest.mark.world_size(2)
    def test_sum(group):
        group["uses"] += 1
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == SIZE == dist.get_world_size()

    @pytest.mark.world_size(4)
    def test_of_another_size():
        assert False

    @pytest.mark.skipif(SIZE == 2, reason="not for two")
    def test_skipped():
        pass

    def test_on_rank_0_only():
        if dist.get_rank():
            pytest.skip("rank 0 does it")
"""
SECOND = """
    import os
    import signal
    import pytest
    import torch.distributed as dist

    def test_lives_on(group):
        assert group["uses"] == 1, "one set-up for all files"

    def test_fails():
        assert dist.get_rank() == 0

    def test_goes_on(group):
        assert group["uses"] == 0, "a new world after a failure"
        dist.barrier()

    def test_crashes():
        if dist.get_rank() == 1:
            signal.raise_signal(signal.SIGSEGV)
        dist.barrier()

    @pytest.mark.timeout(5)
    def test_hangs():
        if dist.get_rank() == 0:
            dist.barrier()

    def test_last():
        dist.barrier()
"""


def outcomes(ended):
    """Name -> outcome, at the one size of the run."""
    return {test.test.name.removesuffix("[2xgloo]"): test.final.outcome for test in ended.run.tests}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def ended(module_lab: Lab):
    module_lab.write(conftest=CONFTEST.format(port=free_port()), test_first=FIRST, test_second=SECOND)
    return module_lab.run("--spmd", "2", ".", "--", "-W", "error")


def test_one_verdict_a_test_over_ranks_that_collected_it(ended):
    assert {
        "test_sum": Outcome.PASSED,
        "test_skipped": Outcome.SKIPPED,
        "test_on_rank_0_only": Outcome.PASSED,
        "test_lives_on": Outcome.PASSED,
        "test_fails": Outcome.FAILED,
        "test_goes_on": Outcome.PASSED,
        "test_crashes": Outcome.ERROR,
        "test_hangs": Outcome.FAILED,
        "test_last": Outcome.PASSED,
    } == outcomes(ended), ended.output


def test_findings_are_those_of_worlds(ended):
    assert ended.result("test_fails").message == "rank 1 of 2 failed: assert 1 == 0"
    assert "rank 1 of 2 was killed by SIGSEGV" in ended.result("test_crashes").message
    assert "deadlock: rank 0 waits in barrier" in ended.result("test_hangs").message
    assert "--spmd 2" in ended.output, "the command that repeats a test"


def test_ranks_that_collect_differently_are_an_error_with_the_difference(lab):
    suite = """
        import os

        def test_everywhere():
            pass

        if os.environ["RANK"] == "1":
            def test_on_rank_1():
                pass
    """
    ended = lab.write(test_differs=suite).run("--spmd", "2", "test_differs.py")

    assert 1 == ended.exit_code
    message = ended.result("test_everywhere").message
    assert "it collected 1 test that rank 0 did not: test_differs.py::test_on_rank_1" in message


def test_a_projects_setting_changes_nothing_under_plain_pytest(lab):
    (lab.folder / "pyproject.toml").write_text("[tool.disttest]\nspmd = 2\n")
    lab.write(test_plain="import os\n\ndef test_plain():\n    assert 'RANK' not in os.environ\n")

    assert 0 == lab.pytest("test_plain.py").exit_code


def test_several_sizes_are_run_one_after_another(lab):
    suite = """
        import os
        import pytest

        SIZE = int(os.environ["WORLD_SIZE"])

        @pytest.mark.parametrize("part", ["a"])
        def test_at_each(part, request):
            assert request.node.name == "test_at_each[a]"
            assert os.environ["RANK"] != "1" or SIZE != 2, "two are one too many"

        @pytest.mark.skipif(SIZE > 1, reason="for one")
        def test_alone():
            pass

        if SIZE == 3:
            def test_three():
                pass
    """
    ended = lab.write(test_sizes=suite).run("--spmd", "1,2,3", "test_sizes.py")

    assert {
        "test_at_each[1xgloo-a]": Outcome.PASSED,
        "test_alone[1xgloo]": Outcome.PASSED,
        "test_at_each[2xgloo-a]": Outcome.FAILED,
        "test_alone[2xgloo]": Outcome.SKIPPED,
        "test_at_each[3xgloo-a]": Outcome.PASSED,
        "test_alone[3xgloo]": Outcome.SKIPPED,
        "test_three[3xgloo]": Outcome.PASSED,
    } == {test.test.name: test.final.outcome for test in ended.run.tests}, ended.output
    assert 1 == ended.exit_code
    assert "disttest run 'test_sizes.py::test_at_each[a]' --spmd 2 --backend gloo" in ended.output
    assert 7 == len(ended.junit().findall(".//testcase"))
    assert {1, 2, 3} == {world.shape.size for world in ended.run.worlds}


def test_a_run_that_ends_early_leaves_the_other_sizes_out(lab):
    lab.write(test_fails="def test_fails():\n    assert False\n")
    ended = lab.run("--spmd", "1,2", "-x", "test_fails.py")

    assert 1 == ended.exit_code
    assert ["test_fails[1xgloo]"] == [test.test.name for test in ended.run.tests]
    assert "not run with --spmd 2" in ended.output


def test_a_size_without_tests_is_fine_where_another_has_some(lab):
    suite = """
        import os

        if os.environ["WORLD_SIZE"] == "2":
            def test_two():
                pass
    """
    ended = lab.write(test_some=suite).run("test_some.py", DISTTEST_SPMD="1,2")

    assert 0 == ended.exit_code, ended.output
    assert ["test_two[2xgloo]"] == [test.test.name for test in ended.run.tests]


def test_a_list_is_of_one_size(lab):
    lab.write(test_one="def test_one():\n    pass\n")

    assert (
        "a list or plan takes one size: give --spmd 1"
        in lab.run("list", "--spmd", "1,2", "test_one.py").output
    )
    assert "test_one[2xgloo]" in lab.run("list", "--tests", "--spmd", "2", "test_one.py").output


@pytest.mark.parametrize("launched", [("--spmd", "2"), ()], ids=["launcher mode", "world"])
def test_a_port_that_a_fixture_chooses_is_hosted_by_rank_0(lab, launched):
    suite = f"""
        import os
        import pytest
        import torch.distributed as dist

        @pytest.fixture(scope="module")
        def group():
            os.environ["MASTER_PORT"] = "{free_port()}"
            dist.init_process_group("gloo")
            yield
            dist.destroy_process_group()

        @pytest.mark.timeout(30)
        @pytest.mark.world_size(2)
        def test_meets(group):
            dist.barrier()
    """
    ended = lab.write(test_port=suite).run(*launched, "test_port.py")

    assert 0 == ended.exit_code, ended.output


HOOKS = """
    import os
    from pathlib import Path

    def note(what):
        with Path(f"rank-{os.environ.get('RANK', 'none')}-{what}").open("a") as file:
            file.write(f"{what}\\n")

    def pytest_runtest_logreport(report):
        if report.failed:
            note(f"failed.{report.nodeid.partition('::')[2].partition('[')[0]}")
        if report.when == "call":
            note("calls")

    def pytest_runtest_logfinish(nodeid):
        note("finished")

    def pytest_sessionfinish(session, exitstatus):
        Path(f"rank-{os.environ.get('RANK', 'none')}-session").write_text(f"{int(exitstatus)} {session.testsfailed}")
"""


def test_a_check_at_the_end_of_a_ranks_session_fails_the_run(lab):
    lab.write(
        conftest="""
        import os

        def pytest_sessionfinish(session):
            if os.environ.get("RANK") == "1":
                session.exitstatus = 3
    """,
        test_good="""
        def test_good():
            pass
    """,
    )

    ended = lab.run("run", "test_good.py", "--spmd", "2")

    assert ended.exit_code == 1, ended.output
    assert (
        "rank 1 of 2 exited with code 3 after it had finished the test" in ended.result("test_good").message
    )


def test_a_check_at_the_end_that_does_not_end_fails_the_run(lab):
    """It was killed after five seconds, and the run was green."""
    lab.write(
        conftest="""
        import os
        import signal

        from disttest.runtime.world import world_supervisor

        world_supervisor.LAST_TEAR_DOWN_S = 1.0

        def pytest_sessionfinish(session):
            if os.environ.get("RANK") == "1":
                signal.pause()
    """,
        test_good="""
        def test_good():
            pass
    """,
    )

    ended = lab.run("run", "test_good.py", "--spmd", "2")

    assert ended.exit_code == 1, ended.output
    assert "or a hook of a conftest, did not end in time" in ended.result("test_good").message


def test_hooks_of_conftests_run_in_each_rank_and_nowhere_else(lab):
    """As under torchrun; the failure of rank 1 is followed by a new world, whose sessions still know of it."""
    lab.write(
        conftest=HOOKS,
        test_hooks="""
        import os

        def test_good():
            pass

        def test_fails_on_rank_1():
            assert os.environ["RANK"] != "1"

        def test_later():
            pass
    """,
    )

    ended = lab.run("run", "test_hooks.py", "--spmd", "2")

    assert ended.exit_code == 1, ended.output
    found = {path.name: path.read_text() for path in lab.folder.glob("rank-*")}
    calls = {name: text.count("\n") for name, text in found.items() if name.endswith(("calls", "finished"))}
    assert {f"rank-{rank}-{what}": 3 for rank in (0, 1) for what in ("calls", "finished")} == calls
    assert ["rank-1-failed.test_fails_on_rank_1"] == [name for name in found if "failed" in name]
    assert {"rank-0-session": "0 0", "rank-1-session": "1 1"} == {
        name: text for name, text in found.items() if name.endswith("session")
    }


def test_a_mark_that_skips_on_rank_0_skips_no_other_rank(lab):
    lab.write(
        test_marked="""
        import os
        import pytest

        @pytest.mark.skipif(os.environ["RANK"] == "0", reason="rank 0 only serves")
        def test_elsewhere():
            assert not "it ran"
        """
    )
    ended = lab.run("--spmd", "2", "test_marked.py")

    assert "rank 1 of 2 failed" in ended.result("test_elsewhere").message, ended.output
