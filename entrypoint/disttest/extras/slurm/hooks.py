"""Hooks of Slurm."""

from __future__ import annotations

from collections.abc import Mapping

from disttest.hookspecs import hookimpl


@hookimpl
def disttest_schedulers() -> Mapping[str, str]:
    """Add ``--launcher slurm``."""
    return {"slurm": "disttest.extras.slurm.scheduler"}
