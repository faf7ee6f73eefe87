"""The preflight: real work that proves devices. See :class:`Prover`."""

from disttest.host.preflight.messages import Check, Level, PreflightResult, Target
from disttest.host.preflight.prover import Prover
from disttest.host.preflight.steps import Bounds, targets_of

__all__ = ["Bounds", "Check", "Level", "PreflightResult", "Prover", "Target", "targets_of"]
