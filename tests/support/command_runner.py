"""Runs a command of click in this process."""

from __future__ import annotations

import inspect

from click.testing import CliRunner


def command_runner() -> CliRunner:
    """A runner that keeps standard error apart, which click before 8.2 does only if it is told to."""
    mixes = "mix_stderr" in inspect.signature(CliRunner).parameters
    return CliRunner(**({"mix_stderr": False} if mixes else {}))
