"""C frames of ranks that hang: where they are asked for and can be had; bounded."""

import time

import pytest

from disttest.host.process import fork_child
from disttest.model import Outcome
from disttest.runtime.world import stacks

pytestmark = pytest.mark.forked_runs

TESTS = """
    import time, pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.timeout(1)
    def test_hangs(world):
        if world.rank == 1:
            time.sleep(600)
        dist.barrier()
"""


def test_they_are_in_the_log_of_the_rank(lab):
    longer_limit = (
        "import disttest.runtime.world.stacks\n\ndisttest.runtime.world.stacks.NATIVE_STACKS_S = 20.0"
    )
    ended = lab.write(test_hang=TESTS, conftest=longer_limit).run("test_hang.py", "--native-stacks", "true")

    result = ended.result("test_hangs")
    log = ended.log("test_hangs", 0)
    assert (Outcome.FAILED, 1) == (result.outcome, result.culprit)
    assert f"{stacks.NATIVE_HEADING}0 at the deadline]" in log
    assert "libtorch_cpu.so" in log, log


@pytest.mark.slow("each node is a new interpreter")
def test_they_are_taken_on_nodes_too(lab):
    """Each node's world has all settings of the run."""
    longer_limit = (
        "import disttest.runtime.world.stacks\n\ndisttest.runtime.world.stacks.NATIVE_STACKS_S = 20.0"
    )
    ended = lab.write(test_hang=TESTS, conftest=longer_limit).run(
        "run",
        "test_hang.py",
        "--native-stacks",
        "true",
        "--launcher",
        "local",
        "--nodes",
        "2",
        "--device",
        "cpu",
    )

    assert Outcome.FAILED == ended.result("test_hangs").outcome, ended.output
    assert f"{stacks.NATIVE_HEADING}0 at the deadline]" in ended.log("test_hangs", 0)


def test_nobody_is_spied_on_unasked(lab):
    ended = lab.write(test_hang=TESTS).run("test_hang.py")

    assert stacks.NATIVE_HEADING not in ended.log("test_hangs", 0)


@pytest.fixture
def sleeper():
    child = fork_child(lambda: time.sleep(600))
    yield child
    child.signal(9)
    child.wait(5)
    child.close()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo Permission denied; exit 1", "Permission denied"),
        ("exit 0", "py-spy said nothing"),
        ("echo begun; exec sleep 600", "begun\n(py-spy did not finish within 0.5 s)"),
    ],
)
def test_a_spy_that_fails_says_so_in_time(tmp_path, monkeypatch, sleeper, script, told):
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\n{script}\n")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "_find_py_spy", lambda: str(spy))

    assert [told] == stacks.native_stacks([sleeper], limit_s=0.5)


def test_without_py_spy_the_log_says_how_to_get_it(monkeypatch, sleeper):
    monkeypatch.setattr(stacks, "_find_py_spy", lambda: None)

    assert ["py-spy is not installed: pip install 'dist-tests[native]'"] == stacks.native_stacks([sleeper])
