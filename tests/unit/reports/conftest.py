"""Golden files: compare, or with ``--update-golden`` write them anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def golden(update_golden: bool) -> Callable[[str, str], None]:
    def check(name: str, actual: str) -> None:
        path = GOLDEN / name
        if update_golden:
            path.parent.mkdir(exist_ok=True)
            path.write_text(actual, encoding="utf-8")
        assert path.is_file(), f"no golden file {path}: run pytest with --update-golden"
        assert actual == path.read_text(encoding="utf-8"), (
            "if this change is meant, run pytest with --update-golden"
        )

    return check
