"""The core by itself: every built-in plugin is left out, and tests run, fail and hang as ever."""

from __future__ import annotations

import pytest

from disttest.model import Outcome
from disttest.plugin_manager import Plugins

PROGRAM = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_passes(world):
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x[0] == 2

    @pytest.mark.world_size(2)
    def test_fails(world):
        if world.rank == 1:
            raise ValueError("bad shard")  # line 15
        dist.barrier()

    @pytest.mark.world_size(2)
    @pytest.mark.timeout(4)
    def test_hangs(world):
        if world.rank == 0:
            dist.barrier()  # line 22

    def test_plain():
        pass
"""


@pytest.fixture
def words():
    """The words that leave out every plugin."""
    return [word for name, _ in Plugins().all for word in ("-p", f"no:{name}")]


def test_tests_run_fail_and_hang_without_any_plugin(lab, words):
    lab.write(test_alone=PROGRAM)
    ended = lab.run("run", ".", *words)

    assert 1 == ended.exit_code, ended.output
    assert Outcome.PASSED is ended.result("test_passes").outcome
    assert Outcome.PASSED is ended.result("test_plain").outcome
    assert "rank 1 of 2 failed: ValueError: bad shard" == ended.result("test_fails").message
    hung = ended.result("test_hangs")
    # Without the plugin that reads torch's flight recorder, the stacks tell what it waits in.
    assert hung.message.startswith("rank 0 waits in barrier at test_alone.py:22; rank 1 had finished")
    assert {".gitignore", "events.jsonl", "results.json", "junit.xml"} == {
        path.name for path in ended.results.iterdir() if path.is_file()
    }
    assert 0 == lab.run("report", "results", *words).exit_code
    assert "launch" not in lab.run("--help", *words).output
