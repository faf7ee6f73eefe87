"""The same verdict, test by test. Reduced: ours against what torch's harness was recorded to say, and a sample live.

``make compat`` runs everything under both, and renews the record.
"""

from __future__ import annotations

import pytest

from tests.compat import harness
from tests.compat.harness import SUITES, Suite

LIVE = {
    "distributed": "test_all_reduce_sum or test_barrier_group or test_send_recv_any_source",
    "rpc": "TensorPipeDistOptimizerTest and test_dist_optim_none_grads",
}
"""A few tests of each file that are always run under torch's harness too, so that the record is not all there is."""


def _ids(suite: Suite) -> str:
    return suite.name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All suites with ``--full``; else those on which torch's harness has been recorded (it takes hours)."""
    if metafunc.function is test_our_verdicts_are_torchs:
        full = metafunc.config.getoption("--full")
        suites = [s for s in SUITES if full or (harness.RECORDED / f"{s.name}.json").exists()]
        metafunc.parametrize("suite", suites, ids=_ids)


def test_our_verdicts_are_torchs(suite, full, tmp_path) -> None:
    if full:
        theirs = harness.run_torchs(suite, tmp_path / "torchs")
        harness.record(suite, theirs)
    else:
        theirs = harness.load_recorded(suite)
    ours = harness.run_ours(suite, tmp_path / "ours")
    assert len(ours) > 10
    if not full:  # the record may be of a part of the suite: torch's harness needs an hour for all of it
        ours = {test: verdict for test, verdict in ours.items() if test in theirs}
    assert harness.unexplained(suite, theirs, ours) == [], (tmp_path / "ours" / "output.txt").read_text()[
        -4000:
    ]


@pytest.mark.parametrize("suite", [Suite("distributed", 2), Suite("rpc", 4)], ids=_ids)
def test_a_sample_live_under_both(suite, tmp_path) -> None:
    theirs = harness.run_torchs(suite, tmp_path / "torchs", select=LIVE[suite.file])
    ours = harness.run_ours(suite, tmp_path / "ours", select=LIVE[suite.file])
    assert theirs
    assert harness.unexplained(suite, theirs, ours) == []


def test_every_difference_is_one_of_a_suite_and_has_a_reason() -> None:
    names = {suite.name for suite in SUITES}
    for difference in harness.load_differences():
        assert difference.suite in names
        assert len(difference.reason) > 20
        assert difference.theirs != difference.ours
