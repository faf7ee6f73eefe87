"""From a fault that breaks a contract to the smallest one: the earliest call of that rank in which that kind does. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from disttest.extras.chaos.case import Fault
from disttest.model import Frozen

_AT_ONCE = 8
"""Calls that a round tries."""


class Search(Frozen):
    """Where a search among the earlier calls of a rank stands."""

    fault: Fault
    """The smallest one known to break the contract."""
    tried: frozenset[int]
    """Calls in which this kind of fault has struck this rank."""
    after: int = 0
    """Later calls only: a whole round up to this one has held."""

    def round(self) -> tuple[Fault, ...]:
        """What to try next, spread evenly over the untried; nothing where the search is over."""
        untried = [call for call in range(self.after + 1, self.fault.call) if call not in self.tried]
        number = min(_AT_ONCE, len(untried))
        calls = (untried[(2 * place + 1) * len(untried) // (2 * number)] for place in range(number))
        return tuple(msgspec.structs.replace(self.fault, call=call) for call in calls)

    def advanced(self, tried: Iterable[Fault], broken: Collection[Fault]) -> Search:
        """The search after a round: among what is earlier still, or nearer to the fault where all of the round have held."""
        calls = {fault.call for fault in tried}
        smaller = msgspec.structs.replace(self, tried=self.tried | calls)
        if broken:
            return msgspec.structs.replace(smaller, fault=min(broken, key=_call))
        return msgspec.structs.replace(smaller, after=max(calls))

    @property
    def tried_before(self) -> int:
        """How many calls before the smallest one were tried, and have held."""
        return sum(call < self.fault.call for call in self.tried)


def begin_search(tried: Collection[Fault], broken: Collection[Fault]) -> Search | None:
    """The search of a test, from its earliest call in which a fault has broken the contract; None where all have held."""
    if not broken:
        return None
    smallest = min(broken, key=_call)
    alike = (fault for fault in tried if (fault.kind, fault.rank) == (smallest.kind, smallest.rank))
    return Search(fault=smallest, tried=frozenset(map(_call, alike)))


def _call(fault: Fault) -> int:
    return fault.call
