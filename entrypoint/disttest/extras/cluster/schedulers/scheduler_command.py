"""A short call of a scheduler's own command: what it says, with a limit."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def call(
    argv: Sequence[str], environ: Mapping[str, str], *, limit_s: float, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Call it with a text as its input, and wait for its end.

    Raises:
        OSError: it cannot be called.
        subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    return subprocess.run(
        list(argv),
        env=dict(environ),
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=False,
    )
