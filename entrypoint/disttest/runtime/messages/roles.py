"""Roles of spawned processes, recorded in files for the supervisor of their test."""

from __future__ import annotations

from pathlib import Path


def role_file(stacks: Path, pid: int) -> Path:
    """Return the file in which a process records its role, next to its file of stacks."""
    return stacks.with_name(f"{stacks.stem}.{pid}.role")
