"""Runs on a real Kubernetes that are cancelled at random moments: the right code, reports, and nothing left in the cluster.

Two trials; ``--trials 100`` has more. A failure names its seed: ``--seed`` repeats it.
"""

from __future__ import annotations

import random
import signal
import time

import pytest
from cluster_programs import SPAN, waits
from kubernetes_lab import KubernetesLab

LONGEST_S = 20.0
"""A run that is not cancelled is over later than that."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed, trials = (metafunc.config.getoption(name) for name in ("--seed", "--trials"))
    chance = random.Random(seed)
    moments = [chance.uniform(0.4, LONGEST_S) for _ in range(trials or 2)]
    metafunc.parametrize("moment_s", moments, ids=lambda moment: f"{seed}-{moment:.3f}s")


def test_a_run_that_is_cancelled_at_any_moment_leaves_no_pod(lab: KubernetesLab, moment_s: float) -> None:
    run = lab.write(test_waits=waits()).on_kubernetes("test_waits.py", *SPAN)
    time.sleep(moment_s)
    assert run.process.poll() is None
    run.process.terminate()
    run.wait(180)
    if (run.results / "events.jsonl").exists():
        assert run.exit_code == 128 + signal.SIGTERM, run.output
        assert run.run.reason == "the run was cancelled by SIGTERM"
        assert all(test.final.message for test in run.run.tests if test.final.outcome.is_bad)
        assert (run.results / "junit.xml").exists()
    else:  # Python itself was starting: the signal has ended it
        assert run.exit_code in (-signal.SIGTERM, 128 + signal.SIGTERM), run.output
    lab.plane.wait_until_free()
    assert lab.plane.kubectl("get", "configmaps", "-lapp.kubernetes.io/managed-by=disttest").stdout == ""
