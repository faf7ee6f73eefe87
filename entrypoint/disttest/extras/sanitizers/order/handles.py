"""Whether the caller of a function does anything with what it returns, read from the caller's bytecode. Pure.

A handle that is kept may be waited for by anybody at any time. One that is popped, or stored in a local variable that
nothing ever reads, is waited for by nobody: that is sure.
"""

from __future__ import annotations

import dis
from types import CodeType

_STORES = frozenset({"STORE_FAST"})


_known: dict[tuple[int, int], tuple[CodeType, bool]] = {}
"""By address, which stays since the code is kept: the hash of a code object reads all of it, each time."""


def is_thrown_away(code: CodeType, at: int) -> bool:
    """Whether the result of the call at this offset (``f_lasti``) is used by nobody."""
    known = _known.get((id(code), at))
    if known is None:
        known = _known[id(code), at] = code, _has_no_use(code, at)
    return known[1]


def _has_no_use(code: CodeType, at: int) -> bool:
    following = next((each for each in dis.get_instructions(code) if each.offset > at), None)
    if following is None:
        return False
    if following.opname == "POP_TOP":
        return True
    return following.opname in _STORES and not _is_read(code, following.argval)


def _is_read(code: CodeType, name: str) -> bool:
    """Whether a local variable is read anywhere; those that inner functions share are other instructions."""
    reads = (each.argval for each in dis.get_instructions(code) if _is_read_of_locals(each))
    return any(name in (read if isinstance(read, tuple) else (read,)) for read in reads)


def _is_read_of_locals(instruction: dis.Instruction) -> bool:
    return "LOAD_FAST" in instruction.opname or instruction.opname == "DELETE_FAST"
