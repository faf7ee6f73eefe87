"""The oldest versions of what we run on, as ``pyproject.toml`` has them for whoever installs with pip."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

OLDEST = {"torch": "2.9", "pytest": "8.4"}


def too_old(version_of: Callable[[str], str] = version) -> str:
    """What is installed and older than that, in a sentence; empty if nothing is.

    Args:
        version_of: tells a distribution's version, or raises PackageNotFoundError.
    """
    for name, oldest in OLDEST.items():
        try:
            found = version_of(name)
        except PackageNotFoundError:  # an ordinary project without torch
            continue
        if Version(found).release < Version(oldest).release:
            return f"{name} {found} is older than disttest runs with: install {name} {oldest} or later"
    return ""
