"""The only module that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from disttest.plugin_manager import plugin_manager

if TYPE_CHECKING:
    from disttest.model import CiJob

HASH_SEED = "PYTHONHASHSEED"


def hash_seed(seed: int, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return ``PYTHONHASHSEED`` for the processes of a run: with different values, sets would be ordered differently.

    Args:
        seed: seed of the run, used unless the environment sets the variable.
        environ: the environment; that of this process unless given.
    """
    given = (environment() if environ is None else environ).get(HASH_SEED, "random")
    # "random" is Python's word for no seed, and 2**32 - 1 is the largest seed that it accepts.
    return {HASH_SEED: str(seed % 2**32) if given == "random" else given}


def environment() -> Mapping[str, str]:
    """Return the variables of this process."""
    return dict(os.environ)  # noqa: TID251


def torch_switch(*names: str) -> bool:
    """Return whether one of torch's switches is on, as its ``getCvarBool`` reads them; it refuses other values."""
    return any(os.environ.get(name, "").lower() in ("1", "y", "yes", "t", "true") for name in names)  # noqa: TID251


def ci_job(environ: Mapping[str, str] | None = None) -> CiJob | None:
    """Return the job of a CI service that this process runs in; None if there is none.

    Args:
        environ: the environment; that of this process unless given.
    """
    given = environment() if environ is None else environ
    job: CiJob | None = plugin_manager().call("disttest_ci_job", environ=given)
    return job


def ci_workspace() -> str:
    """Return the root of the repository, if the job of a CI service names it; empty otherwise."""
    job = ci_job()
    return job.workspace if job else ""


def remove_from_environment(names: Iterable[str]) -> None:
    """Remove variables from this process, and so from its later children."""
    for name in names:
        os.environ.pop(name, None)  # noqa: TID251


def add_to_environment(variables: Mapping[str, str]) -> None:
    """Set variables of this process, and so of its later children."""
    os.environ.update(variables)  # noqa: TID251
