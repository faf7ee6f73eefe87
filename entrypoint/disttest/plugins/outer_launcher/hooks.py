"""Hooks that hide variables of outer launchers."""

from __future__ import annotations

from collections.abc import Mapping

from disttest.hookspecs import hookimpl


@hookimpl
def disttest_hidden_variables(environ: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    """Return the variables by which torchrun, srun or mpirun number a rank."""
    from disttest.plugins.outer_launcher.launchers import find_outer_launchers

    return find_outer_launchers(environ)
