"""Run the command in a fork of a resident parent, before this process imports anything that the command needs."""

from __future__ import annotations

from disttest.extras.resident.handover import run_by_parent as run_early

__all__ = ["run_early"]
