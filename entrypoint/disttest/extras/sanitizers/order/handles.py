"""Read from the caller's bytecode whether it uses the result of a call. Pure functions.

Code anywhere may wait for a handle that is kept. A handle that is popped, or stored in a local variable that is never
read, is certainly never waited for.
"""

from __future__ import annotations

import dis
from types import CodeType

# https://docs.python.org/3/library/dis.html#opcode-STORE_FAST
_STORES = frozenset({"STORE_FAST"})


_known: dict[tuple[int, int], tuple[CodeType, bool]] = {}
"""Keyed by address, which is stable since the code is kept. The hash of a code object reads all of it each time."""


def is_thrown_away(code: CodeType, at: int) -> bool:
    """Whether the result of the call at this offset (``f_lasti``) is never used."""
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
    """Whether a local variable is read anywhere; cell variables of inner functions use other instructions."""
    # Python 3.13 combines two loads into one instruction, whose argval is a tuple:
    # https://docs.python.org/3/library/dis.html
    reads = (each.argval for each in dis.get_instructions(code) if _is_read_of_locals(each))
    return any(name in (read if isinstance(read, tuple) else (read,)) for read in reads)


def _is_read_of_locals(instruction: dis.Instruction) -> bool:
    return "LOAD_FAST" in instruction.opname or instruction.opname == "DELETE_FAST"
