"""Proves that devices work, by real work: :func:`run_preflight`."""

from disttest.host.preflight.background import Proof
from disttest.host.preflight.messages import Check, Level, PreflightResult, Target
from disttest.host.preflight.steps import Bounds, run_preflight, targets_of

__all__ = ["Bounds", "Check", "Level", "PreflightResult", "Proof", "Target", "run_preflight", "targets_of"]
