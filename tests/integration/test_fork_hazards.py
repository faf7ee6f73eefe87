"""Where forking is unsafe, ranks are fresh interpreters: slower, announced, and with the same verdicts."""

import pytest

from disttest.model import Outcome

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
    [(THREAD, "1 thread(s) besides the main one (at-import)"), (CUDA_STUB, "CUDA is already initialised")],
    ids=["thread", "cuda"],
)
def test_a_hazard_at_import_means_fresh_interpreters(lab, start, hazard):
    ended = lab.write(test_hazard=start + TESTS, test_other="def test_never_collected_in_ranks(): pass").run(
        "."
    )

    assert hazard in ended.output
    assert "Each rank is a fresh interpreter" in ended.output
    assert [Outcome.PASSED] * 2 == [ended.result(f"test_works[2xgloo-{v}]").outcome for v in (1, 2)], (
        ended.output
    )
    crash = ended.result("test_crashes")
    assert (Outcome.ERROR, "rank 1 of 2 left with exit code 0 in call, before it reported") == (
        crash.outcome,
        crash.message,
    )


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
