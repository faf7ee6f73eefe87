"""Launcher mode: suites that were written for ``torchrun -m pytest`` run as they are."""

import socket

import pytest
from lab import Lab

from disttest.model import Outcome

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
            os.kill(os.getpid(), signal.SIGSEGV)
        dist.barrier()

    @pytest.mark.timeout(5)
    def test_hangs():
        if dist.get_rank() == 0:
            dist.barrier()

    def test_last():
        dist.barrier()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def ended(module_lab: Lab):
    module_lab.write(conftest=CONFTEST.format(port=free_port()), test_first=FIRST, test_second=SECOND)
    return module_lab.run("--spmd", "2", ".")


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
    } == {test.test.name: test.final.outcome for test in ended.run.tests}, ended.output


def test_findings_are_those_of_worlds(ended):
    assert ended.result("test_fails").message == "rank 1 of 2 failed: assert 1 == 0"
    assert "rank 1 of 2 was killed by SIGSEGV" in ended.result("test_crashes").message
    assert "deadlock: no rank can go on: rank 0 waits in barrier" in ended.result("test_hangs").message
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
