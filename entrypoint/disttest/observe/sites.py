"""The line of the user's code that makes a call."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

from disttest.observe.records import Site

_STDLIB = sysconfig.get_path("stdlib")
_PASSED_OVER = ("torch", "pytest", "_pytest", "pluggy", "typing_extensions")
"""Modules whose lines are skipped. torch's deprecated functions are wrapped in the last one."""
_TORCHS_TESTS = "/torch/testing/_internal/distributed/"
"""Folder of torch's own tests, which users run as theirs."""

_known: dict[int, tuple[CodeType, bool]] = {}
"""By address, which is stable because the code is kept. Hashing a code object would read all of it each time."""
NOWHERE = Site(None, 0)


@cache
def _passed_over() -> tuple[str, ...]:
    """Return the prefixes of skipped files. Modules are located where they were imported from."""
    modules = (sys.modules.get(name) for name in _PASSED_OVER)
    files = [str(Path(each.__file__)) for each in modules if each is not None and each.__file__]
    # "<": code without a file, such as <string> and <frozen importlib._bootstrap>.
    return (f"{Path(__file__).parents[1]}/", *(file.removesuffix("__init__.py") for file in files), "<")


def _counts(code: CodeType) -> bool:
    """Return whether a line of this code may be named."""
    file = code.co_filename
    if _TORCHS_TESTS in file:
        return True
    # site-packages is below the folder of the standard library. Its other packages count as the user's code.
    in_library = "/site-packages/" in file or "/dist-packages/" in file
    return not file.startswith(_passed_over()) and (in_library or not file.startswith(_STDLIB))


def call_site() -> Site:
    """Return the innermost line of this thread outside of torch, Python, pytest and disttest."""
    # The cheapest way to walk a stack: inspect.stack reads source files (Python 3.11 to 3.13).
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        code = frame.f_code
        known = _known.get(id(code))
        if known is None:
            known = _known[id(code)] = code, _counts(code)
        if known[1]:
            return Site(code, frame.f_lineno)
        frame = frame.f_back
    return NOWHERE
