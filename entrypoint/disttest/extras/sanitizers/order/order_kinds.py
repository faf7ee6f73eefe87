"""The kinds of findings of the sanitizer of order."""

from __future__ import annotations

from enum import StrEnum


class OrderFindingKind(StrEnum):
    """What was found; the value is its word in results and reports."""

    MISMATCH = "mismatch"
    """Ranks have called different things at the same number of a group, or one thing with another reduce operation,
    dtype, shape or root; or a send and its receive have other dtypes or sizes."""
    EXTRA = "extra"
    """A collective that not all ranks of its group have issued, or a send or receive without its counterpart."""
    GROUP_ORDER = "group-order"
    """Ranks have issued collectives of two or more groups in orders that make them wait for each other."""
    P2P_ORDER = "p2p-order"
    """Ranks have issued a point-to-point call and a collective, or calls of several tags, in opposite orders."""
    P2P_CYCLE = "p2p-cycle"
    """Each rank begins with a send (or each with a receive) whose counterpart comes after another one's."""
    NEVER_WAITED = "never-waited"
    """An asynchronous call whose handle nobody has waited for."""
