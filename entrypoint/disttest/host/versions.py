"""The oldest supported versions of dependencies, as ``pyproject.toml`` states them for pip."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

# pytest 8.3 is excluded: it adds hooks for each phase of a test, which every comparison of changed state would have
# to know.
OLDEST = {"torch": "2.9", "pytest": "8.4"}


def too_old(version_of: Callable[[str], str] = version) -> str:
    """Return a sentence about an installed version that is too old; empty if there is none.

    Args:
        version_of: returns a distribution's version, or raises PackageNotFoundError.
    """
    for name, oldest in OLDEST.items():
        try:
            found = version_of(name)
        except PackageNotFoundError:  # a project without torch
            continue
        if Version(found).release < Version(oldest).release:
            return f"{name} {found} is too old for disttest: install {name} {oldest} or later"
    return ""
