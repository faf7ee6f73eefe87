"""Proves that devices work, by real work: :func:`run_preflight`."""

from disttest.host.preflight.messages import Check, Level, PreflightResult, Target
from disttest.host.preflight.prover import Prover, run_preflight
from disttest.host.preflight.steps import Bounds, targets_of

__all__ = ["Bounds", "Check", "Level", "PreflightResult", "Prover", "Target", "run_preflight", "targets_of"]
