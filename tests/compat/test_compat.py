"""The same verdict, test by test. Reduced: ours against what torch's harness was recorded to say, and a sample live.

``make compat`` runs everything under both, and renews the record; torch's ranks come from a fork server then, which
takes an hour in place of hours. ``pytest tests/compat --full --spawn`` starts each as torch does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, read_events
from tests.compat import harness
from tests.compat.harness import OVER_NCCL, SUITES, Suite

LIVE = {
    "distributed": "test_all_reduce_sum_complex or test_barrier_group",
    "rpc": "TensorPipeDistOptimizerTest and test_dist_optim_none_grads",
}
"""A few tests of each file that run under torch's harness too, so that the record is not all there is."""

REDUCED = {
    "distributed-gloo-2": "broadcast or reduce_scatter or new_group or gather",
    "distributed-gloo-3": "all_gather or send_recv or test_ddp_uneven",
    "distributed-gloo-4": "all_to_all or broadcast or new_subgroups",
    "rpc-gloo-4": "TensorPipeDistAutogradTest and graph or RpcTest and builtin or test_dist_optim_none_grads",
    "rpc_faulty-gloo-4": "FaultyFaultyAgentDistAutogradTest",
}
"""What is run of the larger suites when nobody asks for all; the rest is in the record."""


def _ids(suite: Suite) -> str:
    return suite.name


@pytest.mark.parametrize("suite", SUITES, ids=_ids)
def test_our_verdicts_are_torchs(suite, full, spawn, tmp_path) -> None:
    select = "" if full else REDUCED.get(suite.name, "")
    if full:
        theirs = harness.run_torchs(suite, tmp_path / "torchs", spawn=spawn)
        harness.record(suite, theirs, spawn=spawn)
    else:
        theirs = harness.load_recorded(suite)
    ours = harness.run_ours(suite, tmp_path / "ours", select=select)
    assert len(ours) > (1 if select else 10)
    theirs = {test: verdict for test, verdict in theirs.items() if not select or test in ours}
    assert harness.unexplained(suite, theirs, ours) == [], _end_of_output(tmp_path)


def _end_of_output(folder: Path) -> str:
    return (folder / "ours" / "output.txt").read_text()[-4000:]


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.thorough("order 1 shows it")) for seed in (2, 3))]
)
def test_they_are_in_reused_ranks_and_another_order_too(seed, tmp_path) -> None:
    suite, python = Suite("distributed", 2), harness.this_interpreter()
    ours = harness.run_ours(
        suite,
        tmp_path / "ours",
        interpreter=python._replace(environ={**python.environ, "ORDER": str(seed)}),
        options=("-p", "shuffled", "--disttest-isolation=warm"),
    )
    assert harness.unexplained(suite, harness.load_recorded(suite), ours) == [], _end_of_output(tmp_path)
    tests = fold(read_events(tmp_path / "ours" / "results" / FILE_NAME)).tests
    pids = {record.pid for test in tests for record in test.final.ranks if record.rank >= 0}
    assert len(pids) < len(tests)  # of two for each


@pytest.mark.parametrize(
    "suite",
    [
        Suite("distributed", 2),
        pytest.param(
            Suite("rpc", 4), marks=pytest.mark.thorough("its record is compared, and the other suite is live")
        ),
    ],
    ids=_ids,
)
def test_a_sample_live_under_both(suite, tmp_path) -> None:
    theirs = harness.run_torchs(suite, tmp_path / "torchs", select=LIVE[suite.file])
    ours = harness.run_ours(suite, tmp_path / "ours", select=LIVE[suite.file])
    assert theirs
    assert harness.unexplained(suite, theirs, ours) == []


def test_every_difference_is_one_of_a_suite_and_has_a_reason() -> None:
    names = {suite.name for suite in (*SUITES, OVER_NCCL)}
    for difference in harness.load_differences():
        assert difference.suite in names
        assert len(difference.reason) > 20
        assert difference.theirs != difference.ours
