"""Hooks of the flight recorder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

    from disttest.model import Collective


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the reader now: when it is used, the main thread may hang in an import."""
    del config
    from disttest.plugins.flight_recorder import recorder  # noqa: F401


@hookimpl
def disttest_rank_environment() -> Mapping[str, str]:
    """Enable torch's flight recorder."""
    return {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_CPP_STACK": "0"}


@hookimpl
def disttest_calls_of_rank(rank: int, since_s: float, folder: Path) -> Sequence[Collective] | None:
    """Read torch's record, and write all of it for torch's own analyser."""
    from disttest.plugins.flight_recorder.recorder import recorded_calls

    return recorded_calls(rank, since_s, folder)
