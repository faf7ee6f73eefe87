"""Gives each test a laboratory of its own, and sees to it that nothing is left of what ran there."""

from lab_fixtures import lab, module_lab, nothing_left

__all__ = ["lab", "module_lab", "nothing_left"]
