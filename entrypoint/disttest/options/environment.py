"""The only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

from disttest.model import Frozen


class Probe(Frozen):
    """How devices are asked and proved. Anything else than this is for the tests of disttest itself."""

    library: str = ""
    """Path of the NVML library; found by the dynamic linker unless given."""
    compute: str = "cuda"
    """Where the preflight does its work."""
    worker: str = ""
    """Module of the preflight's workers."""


def read_probe(environ: Mapping[str, str] | None = None) -> Probe:
    """The probe that ``DISTTEST_PROBE`` describes, as JSON."""
    text = (environment() if environ is None else environ).get("DISTTEST_PROBE")
    return msgspec.json.decode(text, type=Probe) if text else Probe()


HASH_SEED = "PYTHONHASHSEED"


def hash_seed(seed: int, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """``PYTHONHASHSEED`` for the processes of a run: one for all, or sets have another order in each of them.

    Args:
        seed: that of the run; it decides unless the environment does.
        environ: the environment, of this process unless given.
    """
    given = (environment() if environ is None else environ).get(HASH_SEED, "random")
    return {HASH_SEED: str(seed % 2**32) if given == "random" else given}


def environment() -> Mapping[str, str]:
    """The variables of this process."""
    return dict(os.environ)  # noqa: TID251


def remove_from_environment(names: Iterable[str]) -> None:
    """Remove variables of this process, and so of its later children."""
    for name in names:
        os.environ.pop(name, None)  # noqa: TID251


def add_to_environment(variables: Mapping[str, str]) -> None:
    """Set variables of this process, and so of its children."""
    os.environ.update(variables)  # noqa: TID251
