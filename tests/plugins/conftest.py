"""Gives each test a laboratory in an environment that has the plugins of its row, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import environment_with
from lab import Lab
from results_files import check_results_below

LOCK = Path(__file__).parents[2] / "requirements" / "plugins.lock"


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    mark = request.node.get_closest_marker("plugins")
    python = environment_with(LOCK, mark.args)
    # Not the path of this process: packages of the project would come before the plugins.
    yield Lab(tmp_path, python=str(python))
    check_results_below(tmp_path)
