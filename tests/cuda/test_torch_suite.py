"""torch's own tests of ``DistributedTest`` with ``BACKEND=nccl`` on two emulated GPUs: the verdicts are those of its own harness.

A part of our verdicts is compared with the record of torch's; with ``--thorough`` all are, and a sample runs under both.
``make compat`` runs all under both and renews the record.
"""

from __future__ import annotations

import pytest
from thorough import is_wanted

from tests.compat import harness
from tests.compat.harness import OVER_NCCL, Interpreter

EVERY_RUN = "all_reduce_sum or barrier or SyncBatchNorm"
SAMPLE = "test_all_reduce_sum_cuda or test_barrier_cuda or test_SyncBatchNorm_process_group"


@pytest.fixture
def interpreter(cuda, tmp_path) -> Interpreter:
    """The interpreter with torch's CUDA build, and two emulated GPUs of its own."""
    return Interpreter(str(cuda.python), cuda.environ(2, DISTTEST_LEASE_DIR=str(tmp_path / "leases")))


def test_our_verdicts_over_nccl_are_torchs(request, interpreter, tmp_path):
    if request.config.getoption("--full"):
        theirs = harness.run_torchs(OVER_NCCL, tmp_path / "torchs", spawn=False, interpreter=interpreter)
        harness.record(OVER_NCCL, theirs, spawn=False, interpreter=interpreter)
    else:
        theirs = harness.load_recorded(OVER_NCCL)
    whole = is_wanted() or request.config.getoption("--full")
    select = "" if whole else EVERY_RUN
    ours = harness.run_ours(OVER_NCCL, tmp_path / "ours", select=select, interpreter=interpreter)

    output = (tmp_path / "ours" / "output.txt").read_text()
    assert len(theirs) == 285
    assert len(ours) > 20
    if not whole:
        theirs = {test: verdict for test, verdict in theirs.items() if _is_selected(test)}
    assert harness.unexplained(OVER_NCCL, theirs, ours) == [], output[-4000:]
    assert _spawned(tmp_path / "ours") == [], "ranks of torch's classes are forks on the CUDA build, too"


@pytest.mark.thorough("the record has what torch says of it")
def test_a_sample_live_under_both(interpreter, tmp_path):
    theirs = harness.run_torchs(
        OVER_NCCL, tmp_path / "torchs", select=SAMPLE, spawn=False, interpreter=interpreter
    )
    ours = harness.run_ours(OVER_NCCL, tmp_path / "ours", select=SAMPLE, interpreter=interpreter)

    assert "passed" in theirs.values()
    assert harness.unexplained(OVER_NCCL, theirs, ours) == []


def _is_selected(test: str) -> bool:
    """Whether -k EVERY_RUN selects a test."""
    return any(word.lower() in test.lower() for word in EVERY_RUN.split(" or "))


def _spawned(folder):
    logs = folder.glob("results/logs/**/main.log")
    return [log.parent.name for log in logs if "spawned by torch" in log.read_text(errors="replace")]
