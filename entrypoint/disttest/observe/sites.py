"""Where in the user's code a call is made."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType

from disttest.observe.records import Site

_PACKAGE = str(Path(__file__).parents[1])
_STDLIB = sysconfig.get_path("stdlib")
_LIBRARIES = sysconfig.get_path("purelib")
_PASSED_OVER = (
    f"{_PACKAGE}/",
    f"{_LIBRARIES}/torch/",
    f"{_LIBRARIES}/_pytest/",
    f"{_LIBRARIES}/pluggy/",
    f"{_LIBRARIES}/typing_extensions.py",  # what torch marks as deprecated is wrapped there
    "<",
)
_TORCHS_TESTS = f"{_LIBRARIES}/torch/testing/_internal/distributed/"
"""What stands there are tests, which people run as their own."""

_known: dict[int, tuple[CodeType, bool]] = {}
"""By address, which stays since the code is kept: the hash of a code object reads all of it, each time."""
NOWHERE = Site(None, 0)


def _counts(code: CodeType) -> bool:
    """Whether a line of this code is one to name."""
    file = code.co_filename
    if file.startswith(_TORCHS_TESTS):
        return True
    in_library = file.startswith(_LIBRARIES)
    return not file.startswith(_PASSED_OVER) and (in_library or not file.startswith(_STDLIB))


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
