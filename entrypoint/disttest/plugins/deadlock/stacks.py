"""Confirmation by stacks: every Python thread must be in a wait that the board shows. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_HEADER = re.compile(r"^(?:Current t|T)hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "([^"]+)", line \d+ in (\S+)', re.MULTILINE)
_IN_WAITS = re.compile(r"/(torch|disttest/observe)/")
_ANSWERS = {"_answer": "/disttest/runtime/rank/flight.py", "_event_listener": "/common_distributed.py"}
"""Threads of disttest and torch that only wait for questions about their rank: function, mapped to its file."""
_AT_REST = re.compile(r"/disttest/runtime/")

ENTRIES = frozenset(
    {
        "_engine_run_backward",
        "run_backward",
        "_verify_param_shape_across_processes",
        "_sync_module_states",
        "_sync_params_and_buffers",
        "_ddp_init_helper",
        "_build_debug_param_to_name_mapping",
        "_sync_buffers",
        "_sync_module_buffers",
        "_default_broadcast_coalesced",
        "_distributed_broadcast_coalesced",
        "_pre_forward",
    }
)
"""Functions of torch that wait in C++ for calls that they have issued there."""


class DumpedThread(NamedTuple):
    """A thread in a stack dump."""

    ident: int
    frames: list[tuple[str, str]]
    """File and function, innermost first."""

    @property
    def innermost(self) -> tuple[str, str]:
        """The innermost frame; empty without a Python frame."""
        return self.frames[0] if self.frames else ("", "")

    @property
    def answers(self) -> bool:
        """Whether it only answers questions."""
        return any(file.endswith(_ANSWERS.get(function, "\n")) for file, function in self.frames)


def read_threads(stacks: str) -> list[DumpedThread]:
    """Parse the threads of a dump by faulthandler."""
    threads = []
    for part in stacks.split("\n\n"):
        header = _HEADER.match(part)
        if header is not None:
            threads.append(DumpedThread(int(header[1], 16), _FRAME.findall(part)))
    return threads


def confirm_waits(stacks: str, waits: Mapping[int, bool]) -> bool:
    """Return whether the board accounts for all threads of a rank in its test.

    Args:
        stacks: complete output of faulthandler.
        waits: thread, mapped to whether its last event was a call issued by C++.
    """
    threads = read_threads(stacks)
    known = {thread.ident for thread in threads}
    return known.issuperset(waits) and all(_is_confirmed(thread, waits) for thread in threads)


def _is_confirmed(thread: DumpedThread, waits: Mapping[int, bool]) -> bool:
    if thread.ident not in waits:
        return thread.answers
    file, function = thread.innermost
    if waits[thread.ident] and "/disttest/observe/" not in file:
        return function in ENTRIES and "/torch/" in file
    return _IN_WAITS.search(file) is not None


def confirm_rest(stacks: str) -> bool:
    """Return whether a rank that has finished the test only waits for the next one."""
    threads = read_threads(stacks)
    return bool(threads) and all(thread.answers or _AT_REST.search(thread.innermost[0]) for thread in threads)
