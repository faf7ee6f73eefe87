"""The roles of spawned processes, which they note in a file for the supervisor of their test."""

from __future__ import annotations

from pathlib import Path


def role_file(stacks: Path, pid: int) -> Path:
    """Where a process notes its role, beside the file into which it writes its stacks."""
    return stacks.with_name(f"{stacks.stem}.{pid}.role")
