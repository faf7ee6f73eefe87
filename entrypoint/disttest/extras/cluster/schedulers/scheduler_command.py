"""Short calls of a scheduler's commands, with a time limit."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def call(
    argv: Sequence[str], environ: Mapping[str, str], *, limit_s: float, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command with a text as its input, and wait for its end.

    Raises:
        OSError: the command cannot be run. subprocess.TimeoutExpired: it did not end in time, and was killed.
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
