"""Shrink a fault that breaks a contract: find the earliest call of that rank in which it does. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from disttest.extras.chaos.case import Fault
from disttest.model import Frozen

_AT_ONCE = 8
"""Calls tried in one round."""


class Search(Frozen):
    """State of a search among the earlier calls of a rank."""

    fault: Fault
    """The smallest fault known to break the contract."""
    tried: frozenset[int]
    """Calls in which this kind of fault was injected into this rank."""
    after: int = 0
    """Search later calls only: a whole round up to this one kept the contract."""

    def round(self) -> tuple[Fault, ...]:
        """Return the faults to try next, spread evenly over the untried calls; empty when the search is over."""
        untried = [call for call in range(self.after + 1, self.fault.call) if call not in self.tried]
        number = min(_AT_ONCE, len(untried))
        calls = (untried[(2 * place + 1) * len(untried) // (2 * number)] for place in range(number))
        return tuple(msgspec.structs.replace(self.fault, call=call) for call in calls)

    def advanced(self, tried: Iterable[Fault], broken: Collection[Fault]) -> Search:
        """Return the search after a round: continue before its smallest breaking fault, or after the round if none
        broke."""
        calls = {fault.call for fault in tried}
        smaller = msgspec.structs.replace(self, tried=self.tried | calls)
        if broken:
            return msgspec.structs.replace(smaller, fault=min(broken, key=_call))
        return msgspec.structs.replace(smaller, after=max(calls))

    @property
    def tried_before(self) -> int:
        """Number of calls before the smallest fault that were tried and kept the contract."""
        return sum(call < self.fault.call for call in self.tried)


def begin_search(tried: Collection[Fault], broken: Collection[Fault]) -> Search | None:
    """Begin a search at the earliest call in which a fault broke the contract; None if none did."""
    if not broken:
        return None
    smallest = min(broken, key=_call)
    alike = (fault for fault in tried if (fault.kind, fault.rank) == (smallest.kind, smallest.rank))
    return Search(fault=smallest, tried=frozenset(map(_call, alike)))


def _call(fault: Fault) -> int:
    return fault.call
