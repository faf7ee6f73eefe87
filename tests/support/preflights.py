"""A preflight from its start to its end."""

from __future__ import annotations

from collections.abc import Sequence

from disttest.plugins.gpus.preflight.messages import Level, PreflightResult, Target
from disttest.plugins.gpus.preflight.prover import Prover
from disttest.plugins.gpus.preflight.steps import WORKER, Bounds


def run_preflight(
    targets: Sequence[Target],
    *,
    level: Level = Level.QUICK,
    worker: str = WORKER,
    bounds: Bounds | None = None,
) -> PreflightResult:
    """Prove devices by a prover of their own."""
    with Prover(worker=worker, bounds=bounds) as prover:
        prover.begin(targets, level=level)
        return prover.result()
