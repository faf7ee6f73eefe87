"""Kinds of findings of the sanitizer ``order``."""

from __future__ import annotations

from enum import StrEnum


class OrderFindingKind(StrEnum):
    """Kind of a finding; the value is its word in results and reports."""

    MISMATCH = "mismatch"
    """Ranks make different calls at the same number of a group, or the same call with another reduce operation, dtype,
    shape or root; or a send and its receive differ in dtype or size."""
    EXTRA = "extra"
    """A collective that not all ranks of its group issue, or a send or receive without its counterpart."""
    GROUP_ORDER = "group-order"
    """Ranks issue collectives of two or more groups in orders that wait for each other."""
    P2P_ORDER = "p2p-order"
    """Ranks issue a point-to-point call and a collective, or calls with several tags, in opposite orders."""
    P2P_CYCLE = "p2p-cycle"
    """Each rank begins with a send (or each with a receive) whose counterpart is behind another one."""
    NEVER_WAITED = "never-waited"
    """An asynchronous call whose handle is never waited for."""
