"""Hostile trials: what a run meets besides faults of its ranks, and what must hold then.

The fault matrix (fault_matrix.py) has what a rank can do inside of a test. Here is the rest: other runs and users of the
machine, broken terminals, forged files, plugins. A trial runs the real command in an empty folder and raises AssertionError
where its claim does not hold. One list serves the tests (tests/integration/test_hostile.py) and ``bench/faults.py --hostile``.

Each module of this package has a tuple ``TRIALS``.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable

from lab import Lab


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One hostile situation."""

    id: str
    """In small letters with hyphens; unique."""
    claim: str
    """What must hold, in one sentence."""
    run: Callable[[Lab], None]
    """Raises AssertionError where the claim does not hold. Leaves nothing behind."""
    thorough: str = ""
    """Why it runs only with --thorough: what shows the same in every run."""

    def __str__(self) -> str:
        return self.id


def all_trials() -> tuple[Trial, ...]:
    """The trials of all modules, in a fixed order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(trial for module in modules for trial in module.TRIALS)
