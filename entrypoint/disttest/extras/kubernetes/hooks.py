"""Hooks of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping

from disttest.hookspecs import hookimpl


@hookimpl
def disttest_schedulers() -> Mapping[str, str]:
    """Add ``--launcher kubernetes``."""
    return {"kubernetes": "disttest.extras.kubernetes.scheduler"}
