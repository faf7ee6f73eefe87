"""Observations: the entries of traces, resolved, and matched between ranks. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from disttest.extras.sanitizers.values.trace import Content, Role, TensorPlace, Trace
from disttest.observe.operations import title_of

_OF_CALLS = frozenset({Role.INPUT, Role.OUTPUT})


class Observation(NamedTuple):
    """One observation of a tensor by a rank."""

    rank: int
    position: int
    """Position in the trace of the rank."""
    place: TensorPlace
    content: Content
    number: int

    @property
    def is_of_call(self) -> bool:
        """Whether it is an input or output of a call."""
        return self.place.role in _OF_CALLS

    @property
    def same_on_ranks(self) -> tuple[object, ...]:
        """Key that observations of the same thing share on all ranks."""
        place = self.place
        # The number is that of the call in its group, which all ranks count alike. The line may differ
        # between ranks.
        if self.is_of_call:
            return (place.role, place.group_id, place.ranks, self.number, place.index)
        return (place.role, place.model, place.name, place.index, self.number)


def observations_of(rank: int, trace: Trace) -> Iterator[Observation]:
    """Yield the observations of a rank, in order."""
    for position, entry in enumerate(trace.entries):
        yield Observation(
            rank, position, trace.places[entry.place], trace.contents[entry.content], entry.number
        )


class ObservationIndex:
    """Observations of all ranks of a test, by their common keys."""

    def __init__(self, traces: Mapping[int, Trace]) -> None:
        self.of_rank = {rank: tuple(observations_of(rank, trace)) for rank, trace in traces.items()}
        self.together: dict[tuple[object, ...], dict[int, Observation]] = {}
        for observations in self.of_rank.values():
            for observation in observations:
                self.together.setdefault(observation.same_on_ranks, {})[observation.rank] = observation

    def peers(self, observation: Observation) -> dict[int, Observation]:
        """Return the observations of the same thing by rank."""
        return self.together[observation.same_on_ranks]

    def matching(self, role: Role, observation: Observation) -> dict[int, Observation]:
        """Return the ranks' observations of the same parameter, at the same step, in another role."""
        place = observation.place
        # The start of a parameter is noted once, before its first step.
        number = 1 if role is Role.BEFORE else observation.number
        return self.together.get((role, place.model, place.name, place.index, number), {})

    def agrees(self, observation: Observation) -> bool | None:
        """Whether all ranks observed the same content; None if only one rank observed it."""
        peers = self.peers(observation)
        return are_equal(peers.values()) if len(peers) > 1 else None


def are_equal(observations: Iterable[Observation]) -> bool:
    """Whether all have the same content."""
    return len({observation.content.digest for observation in observations}) < 2


def odd_pair(observations: Iterable[Observation]) -> tuple[Observation, Observation]:
    """Return the lowest ranks' observations with the most frequent content and with another one."""
    ordered = sorted(observations)
    counts = Counter(observation.content.digest for observation in ordered)
    most = max(counts, key=lambda digest: counts[digest])
    usual = next(observation for observation in ordered if observation.content.digest == most)
    return usual, next(observation for observation in ordered if observation.content.digest != most)


def odd_ranks(observations: Iterable[Observation]) -> tuple[int, ...]:
    """Return the ranks without the most frequent content; all ranks if no content is on two of them."""
    ordered = sorted(observations)
    counts = Counter(observation.content.digest for observation in ordered)
    most = max(counts.values())
    usual = {digest for digest, count in counts.items() if count == most}
    # With a tie, as between two ranks, nothing shows which content is the right one.
    if len(usual) > 1:
        return tuple(observation.rank for observation in ordered)
    return tuple(observation.rank for observation in ordered if observation.content.digest not in usual)


_FRONT = {
    Role.INPUT: "input of ",
    Role.OUTPUT: "output of ",
    Role.GIVEN: "input of module ",
    Role.MODULE: "output of module ",
    Role.WRAPPED: "parameter ",
    Role.ROOT: "root of ",
    Role.GRADIENT: "gradient of ",
    Role.BEFORE: "parameter ",
    Role.PARAMETER: "parameter ",
    Role.SHARED: "parameter ",
    Role.BUFFER: "buffer ",
}


def describe(observation: Observation) -> str:
    """Format ``output of all_reduce SUM #3 of group default`` or ``gradient of layers.0.weight before step 2``."""
    return f"{_FRONT[observation.place.role]}{subject(observation)}"


def subject(observation: Observation) -> str:
    """Format it without its role: ``all_reduce SUM #3 of group default``, ``layers.0.weight after step 2``."""
    place = observation.place
    if observation.is_of_call:
        words = [title_of(place.name), *([place.kind] if place.kind else [])]
        ends = (
            [f"{'to' if place.name == 'send' else 'from'} rank {place.peer}"]
            if place.peer is not None
            else []
        )
        return " ".join([*words, *ends, f"#{observation.number} of group {place.group}"])
    if place.role in (Role.GIVEN, Role.MODULE):
        name = f"{place.name} ({place.kind})" if place.name else place.kind
        return f"{name}, call {observation.number}"
    if place.role is Role.ROOT:
        return f"backward pass {observation.number}"
    return f"{place.name} {_when(place.role, observation.number)}"


def _when(role: Role, number: int) -> str:
    return {
        Role.WRAPPED: "at the first forward",
        Role.BEFORE: "before the first step",
        Role.GRADIENT: f"before step {number}",
        Role.PARAMETER: f"after step {number}",
        Role.SHARED: f"at the forward after step {number}",
        Role.BUFFER: f"at evaluation {number}",
    }[role]


def at(place: TensorPlace) -> str:
    """Format `` at test_step.py:39``; empty if the line is unknown."""
    return f" at {place.where}" if place.where else ""
