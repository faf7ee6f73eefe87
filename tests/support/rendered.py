"""What reports write in pieces or onto a terminal, as one text."""

from __future__ import annotations

import io
from typing import Literal

from rich.console import Console

from disttest.reports.results_json import results_json_pieces
from disttest.reports.terminal import print_final
from disttest.results.fold import RunResult


def render_final(run: RunResult, *, width: int = 100, color: bool = False) -> str:
    """What the end of a run shows on a terminal."""
    system: Literal["standard"] | None = "standard" if color else None
    text = io.StringIO()
    print_final(Console(file=text, width=width, force_terminal=color, color_system=system), run)
    return text.getvalue()


def render_results_json(run: RunResult) -> str:
    """``results.json``."""
    return b"".join(results_json_pieces(run)).decode()
