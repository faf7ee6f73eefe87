"""Where in the user's code a call is made."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

from disttest.observe.records import Site

_STDLIB = sysconfig.get_path("stdlib")
_PASSED_OVER = ("torch", "pytest", "_pytest", "pluggy", "typing_extensions")
"""Modules; what torch marks as deprecated is wrapped in the last one."""
_TORCHS_TESTS = "/torch/testing/_internal/distributed/"
"""What stands there are tests, which people run as their own."""

_known: dict[int, tuple[CodeType, bool]] = {}
"""By address, which stays since the code is kept: the hash of a code object reads all of it, each time."""
NOWHERE = Site(None, 0)


@cache
def _passed_over() -> tuple[str, ...]:
    """How the names of files begin that are nobody's line; each module is where it was imported from."""
    modules = (sys.modules.get(name) for name in _PASSED_OVER)
    files = [str(Path(each.__file__)) for each in modules if each is not None and each.__file__]
    return (f"{Path(__file__).parents[1]}/", *(file.removesuffix("__init__.py") for file in files), "<")


def _counts(code: CodeType) -> bool:
    """Whether a line of this code is one to name."""
    file = code.co_filename
    if _TORCHS_TESTS in file:
        return True
    in_library = "/site-packages/" in file or "/dist-packages/" in file
    return not file.startswith(_passed_over()) and (in_library or not file.startswith(_STDLIB))


def call_site() -> Site:
    """The innermost line of this thread that is not torch's, Python's, pytest's or ours."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # cheaper than any other way by far
    while frame is not None:
        code = frame.f_code
        known = _known.get(id(code))
        if known is None:
            known = _known[id(code)] = code, _counts(code)
        if known[1]:
            return Site(code, frame.f_lineno)
        frame = frame.f_back
    return NOWHERE
