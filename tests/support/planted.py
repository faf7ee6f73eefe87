"""Planted programs (tests/planted): what a tool must find in each stands beside the program, as data.

Shared by the programs, the tests that run them and bench/sanitize.py.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "planted"
HANGS = ("hangs_collectives", "hangs_messages", "hangs_models")
TRAPS = ("traps",)
ORDERS = ("orders", "orders_models")
GOOD = ("good",)
"""Modules of tests/planted, by what is planted in them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One program, and what must be found in it."""

    name: str
    kind: str
    """What is wrong with it; programs of one kind go wrong in the same way."""
    size: int
    """Number of ranks."""
    ranks: tuple[int, ...]
    """A hang: the ranks that wait for ever. An order: those whose calls do not fit. Empty: nothing may be found."""
    says: tuple[str, ...]
    """Words of the finding's message."""
    report: str
    """A report of a user that tells of it, as ``owner/repository#number``; empty if it follows none."""

    def lacks(self, message: str) -> list[str]:
        """Which words a message does not have, whether words stand together, apart or with underscores between."""
        return [word for word in self.says if _plain(word) not in _plain(message)]


def _plain(text: str) -> str:
    return text.lower().replace("_", "").replace("-", "").replace(" ", "")


def hangs(
    kind: str, *, size: int, waits: Iterable[int], says: str | tuple[str, ...], report: str = ""
) -> Callable[[Any], Any]:
    """Declare a program that hangs: these ranks wait for ever, and the finding has these words."""
    return _declare(kind, size, waits, says, report)


def disagrees(
    kind: str, *, size: int, ranks: Iterable[int], says: str | tuple[str, ...], report: str = ""
) -> Callable[[Any], Any]:
    """Declare a program that passes over gloo though the calls of these ranks do not fit together."""
    return _declare(kind, size, ranks, says, report)


def fine(kind: str, *, size: int, report: str = "") -> Callable[[Any], Any]:
    """Declare a program in which nothing may be found."""
    return _declare(kind, size, (), (), report)


def _declare(
    kind: str, size: int, ranks: Iterable[int], says: str | tuple[str, ...], report: str
) -> Callable[[Any], Any]:
    words = (says,) if isinstance(says, str) else says

    def declare(function: Any) -> Any:
        function.program = Program(
            name=function.__name__, kind=kind, size=size, ranks=tuple(ranks), says=words, report=report
        )
        return pytest.mark.world_size(size)(function)

    return declare


def programs_of(modules: Iterable[str]) -> dict[str, Program]:
    """The programs of these modules, by the names of their tests."""
    found: dict[str, Program] = {}
    for module in modules:
        for value in vars(_load(module)).values():
            program = getattr(value, "program", None)
            if isinstance(program, Program):
                if program.name in found:
                    raise ValueError(f"two planted programs are called {program.name}")
                found[program.name] = program
    return found


def _load(module: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"planted_{module}", FOLDER / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def copy_programs(folder: Path, modules: Iterable[str]) -> list[str]:
    """Put modules where a run finds them without the settings of this repository; their file names."""
    names = [f"{module}.py" for module in modules]
    for name in names:
        shutil.copy(FOLDER / name, folder)
    return names
