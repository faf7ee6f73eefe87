"""Judge the observations of all ranks; find the origin of NaN or infinity, and how it reached others. Pure functions.

Replicas that have diverged are found in outputs of collectives, in parameters and in buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from disttest.extras.sanitizers.sanitizer import Consequence, Judgement
from disttest.extras.sanitizers.values.constant_starts import ConstantStarts
from disttest.extras.sanitizers.values.contents import first_difference, index_of, is_constant
from disttest.extras.sanitizers.values.observations import (
    Observation,
    ObservationIndex,
    are_equal,
    at,
    describe,
    odd_pair,
    odd_ranks,
    subject,
)
from disttest.extras.sanitizers.values.trace import NOWHERE, Role, Trace, Trust
from disttest.model import PluginFinding, RankCalls, SeenCall, rank_names


class ValueFindingKind(StrEnum):
    """Kind of a finding; the value is its word in results and reports."""

    OUTPUT = "output"
    """A collective that gives all ranks the same result gave them different numbers."""
    PARAMETER = "parameter"
    """Parameters that should be replicas of each other differ."""
    BUFFER = "buffer"
    """A model in DistributedDataParallel was evaluated with different buffers on the ranks."""
    NONFINITE = "nonfinite"
    """NaN or infinity got into parameters, or into the result of a reduction."""


NAME = "values"
_BEFORE, _AFTER = 6, 2
"""Observations shown before and after the decisive one."""
_MOST_RANKS = 8


def make_finding(
    kind: ValueFindingKind,
    message: str,
    consequence: Consequence,
    observed: ObservationIndex,
    decisive: Sequence[Observation],
) -> PluginFinding:
    """Make a finding.

    Args:
        kind: kind of the finding.
        message: the ranks, their values and the lines.
        consequence: effect and advice.
        observed: observations of the test.
        decisive: observations that the finding is about, at most one of each rank.
    """
    return PluginFinding(
        finder=NAME,
        kind=str(kind),
        message=message,
        effect=consequence.effect,
        advice=consequence.advice,
        orders=tuple(
            RankCalls(rank=observation.rank, calls=tuple(_around(observed, observation)))
            for observation in sorted(decisive)[:_MOST_RANKS]
        ),
    )


def _around(observed: ObservationIndex, decisive: Observation) -> Iterator[SeenCall]:
    observations = observed.of_rank[decisive.rank]
    for observation in observations[max(0, decisive.position - _BEFORE) : decisive.position + _AFTER + 1]:
        yield SeenCall(
            what=describe(observation),
            file=observation.place.file,
            line=observation.place.line,
            decides=observation is decisive,
            same=observed.agrees(observation),
        )


def both_values(observations: Sequence[Observation]) -> str:
    """Format ``at index [2] rank 0 has 3, rank 1 has 4``."""
    usual, odd = odd_pair(observations)
    found = first_difference(usual.place, usual.content, odd.content)
    pair = sorted(zip((usual, odd), found.values or ("", ""), strict=True))
    if found.values is None:
        return f"rank {pair[0][0].rank} and rank {pair[1][0].rank} differ first at {found.at}"
    return f"at {found.at} " + ", ".join(
        f"rank {observation.rank} has {value}" for observation, value in pair
    )


def places_of(observations: Sequence[Observation]) -> str:
    """Format `` at test_step.py:39``; several lines are each named once."""
    return " and".join(dict.fromkeys(at(observation.place) for observation in sorted(observations)))


_REDUCING = frozenset(
    {
        "allreduce",
        "allreduce_coalesced",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
    }
)
_OF_COMPUTATION = frozenset({Role.GIVEN, Role.MODULE, Role.ROOT, Role.INPUT, Role.OUTPUT})
_COMPUTING = frozenset({"SUM", "AVG", "PREMUL_SUM", "PRODUCT", ""})
"""Reductions that make new numbers. MIN and MAX may start with infinity on purpose."""
_WORDS = {"nan": "NaN", "inf": "infinity"}
_ADVICE = Consequence(
    "Everything computed from it is invalid, on all ranks that a reduction passes it to.",
    "Check the first place for a division by zero, a logarithm or root of a negative number, or an overflow of the dtype.",
)


def find_nonfinite(observed: ObservationIndex) -> Iterator[PluginFinding]:
    """Report its first appearance if it had an effect. Masks of infinity have none."""
    # The effect first: without one, infinity is on purpose, as in masks.
    effect = _first_effect(observed)
    if effect is None:
        return
    first = {rank: bad for rank in observed.of_rank if (bad := _first_bad(observed, rank))}
    # An output may only carry the number of another rank, so places where a rank computed come first.
    source = min(
        first.values(),
        key=lambda observation: (
            observation.place.role is Role.OUTPUT,
            observation.position,
            observation.rank,
        ),
    )
    others = sorted(observation.rank for observation in first.values() if observation.rank != source.rank)
    index = index_of(source.content.bad_at, source.place)
    reached = "" if effect is source else f"; it got into {describe(effect)}{at(effect.place)}"
    message = (
        f"{_WORDS[source.content.bad]} first appeared on rank {source.rank} in the {describe(source)}"
        f"{at(source.place)}, at index {index}{_finite_before(observed, source)}"
        f"{_spread(observed, source, others)}{reached}"
    )
    yield make_finding(ValueFindingKind.NONFINITE, message, _ADVICE, observed, list(first.values()))


def _first_bad(observed: ObservationIndex, rank: int) -> Observation | None:
    # A mask of infinity is an input on purpose.
    bad = (
        observation
        for observation in observed.of_rank[rank]
        if observation.content.bad == "nan"
        or (observation.content.bad and observation.place.role is not Role.GIVEN)
    )
    return next(bad, None)


def _finite_before(observed: ObservationIndex, source: Observation) -> str:
    """Name the last finite observation of the computation: the lines to check begin there.

    A backward pass fails because of the forward, so a line of the forward is named, too.
    """
    if source.place.role is Role.GIVEN:
        return ""
    before = reversed(observed.of_rank[source.rank][: source.position])
    seen = [observation for observation in before if observation.place.role in _OF_COMPUTATION]
    shown = seen[: 2 if seen and seen[0].place.role is Role.ROOT else 1]
    if not shown or any(observation.content.bad for observation in shown):
        return ""
    names = " and ".join(
        f"the {describe(observation)}{at(observation.place)}" for observation in reversed(shown)
    )
    return f", after {names}, which {'were' if len(shown) > 1 else 'was'} finite"


def _first_effect(observed: ObservationIndex) -> Observation | None:
    """Return the first parameter, sum or product that is not finite and did not start so."""
    found = (
        observation
        for rank in observed.of_rank
        for observation in observed.of_rank[rank]
        if _is_effect(observed, observation)
    )
    return min(found, key=lambda observation: (observation.position, observation.rank), default=None)


def _is_effect(observed: ObservationIndex, observation: Observation) -> bool:
    if not observation.content.bad:
        return False
    if observation.place.role is Role.PARAMETER:
        begun = observed.matching(Role.BEFORE, observation).get(observation.rank)
        return begun is None or not begun.content.bad
    if observation.place.role is not Role.OUTPUT or observation.place.name not in _REDUCING:
        return False
    if observation.place.kind not in _COMPUTING:
        return False
    # A sum of finite numbers that overflows began in the call. Infinity that was handed in may be on purpose,
    # NaN never is.
    given = observed.together.get((Role.INPUT, *observation.same_on_ranks[1:]), {}).values()
    overflowed = bool(given) and not any(each.content.bad for each in given)
    return overflowed or observation.content.bad == "nan"


def _spread(observed: ObservationIndex, source: Observation, others: list[int]) -> str:
    if not others:
        return ""
    outputs = (
        observation
        for observation in observed.of_rank[others[0]]
        if observation.place.role is Role.OUTPUT and observation.content.bad
    )
    carrier = next(outputs, None)
    if carrier is None or carrier is source:
        return f", then on {rank_names(others)}"
    return f"; {subject(carrier)}{at(carrier.place)} took it to {rank_names(others)}"


_decoder = msgspec.json.Decoder(Trace)


def judge_values(traces: Mapping[int, Trace]) -> tuple[PluginFinding, ...]:
    """Judge a test that passed on all ranks.

    Args:
        traces: rank -> its observations, for all ranks of the world.
    """
    if any(trace.doubtful for trace in traces.values()):
        return ()
    observed = ObservationIndex(traces)
    return (
        *find_outputs(observed),
        *find_parameters(observed),
        *find_buffers(observed),
        *find_nonfinite(observed),
    )


def limits_of(traces: Mapping[int, Trace]) -> tuple[str, ...]:
    """Describe the observations that were not compared."""
    cut = {rank: trace.beyond for rank, trace in traces.items() if trace.beyond}
    if not cut:
        return ()
    rank, more = min(cut.items())
    kept = len(traces[rank].entries)
    return (f"values were compared for the first {kept:,} tensors; rank {rank} has seen {more:,} more",)


def judge_reports(reports: Mapping[int, msgspec.Raw]) -> Judgement:
    """Judge the reports of the ranks."""
    traces = {rank: _decoder.decode(report) for rank, report in sorted(reports.items())}
    return Judgement(judge_values(traces), limits_of(traces))


_GIVING_ALL_THE_SAME = frozenset(
    {
        "allgather",
        "allgather_base",
        "allgather_coalesced",
        "allgather_into_tensor_coalesced",
        "allreduce",
        "allreduce_coalesced",
        "broadcast",
    }
)

_OUTPUT = Consequence(
    "Everything computed from it differs from here on, and no collective reports it.",
    "Check for writes to the tensor between the call and its wait, and that all ranks wait before they use it.",
)
_WROTE = Consequence(
    "Each rank trains another model: gradients are averaged over different models.",
    "Change parameters before DistributedDataParallel wraps the model, or broadcast the changes.",
)
_BEGAN = Consequence(
    "Each rank trains another model: gradients are averaged over different models.",
    "Build the model with the same seed on all ranks, or broadcast its parameters before the first step.",
)
_GRADIENT = Consequence(
    "Each rank trains another model from this step on.",
    "Make sure that this gradient is reduced over these ranks before the step: use the parameter through the wrapped "
    "model's forward, outside no_sync; create it before wrapping; do not read the gradient before the wait.",
)
_STEP = Consequence(
    "Each rank trains another model from this step on.",
    "The gradients were equal: check for differences in settings or state of the optimizer, and for writes to the parameter.",
)
_SHARED = Consequence(
    "Each rank trains another model from this step on.",
    "Each rank steps a part of the parameters: make sure that it sends all of them to the others before they are used.",
)
_BUFFER = Consequence(
    "Ranks evaluate different models: metrics and checkpoints depend on the rank that computes or writes them.",
    "Evaluate through the wrapped model with broadcast_buffers=True, broadcast the buffers first, or use SyncBatchNorm.",
)


def find_outputs(observed: ObservationIndex) -> Iterator[PluginFinding]:
    """Report the first collective that gave different numbers to ranks."""
    diverged = [
        group
        for group in _groups(observed, Role.OUTPUT)
        if group[0].place.name in _GIVING_ALL_THE_SAME and _can_be_compared(group) and not are_equal(group)
    ]
    if diverged:
        first = min(diverged, key=_moment)
        message = f"{subject(first[0])} gave {rank_names(odd_ranks(first))} other numbers{places_of(first)}: {both_values(first)}"
        yield make_finding(ValueFindingKind.OUTPUT, message, _OUTPUT, observed, first)


def find_parameters(observed: ObservationIndex) -> Iterator[PluginFinding]:
    """Report the first parameter that should be equal on its ranks and stays different to the end of the test."""
    starts = ConstantStarts(observed)
    diverged = [
        (group, because)
        for role in (Role.WRAPPED, Role.PARAMETER, Role.SHARED)
        for seen in _groups(observed, role)
        for group, because in _replicas(observed, starts, seen)
        if len(group) > 1 and not are_equal(group) and not _meet_again(observed, group)
    ]
    if diverged:
        first, because = min(diverged, key=lambda each: _moment(each[0]))
        # The other parameters of a model usually diverge, too. Only their number is reported.
        others = len({_parameter(group[0]) for group, _ in diverged}) - 1
        reason, consequence = _reason(observed, first)
        more = f"; so do {others} more" if others else ""
        message = (
            f"parameter {subject(first[0])} differs on {rank_names(odd_ranks(first))}{places_of(first)}: "
            f"{both_values(first)}{reason}{because}{more}"
        )
        yield make_finding(ValueFindingKind.PARAMETER, message, consequence, observed, first)


def find_buffers(observed: ObservationIndex) -> Iterator[PluginFinding]:
    """Report the first buffer of a wrapped model with which ranks evaluate differently."""
    diverged = [
        group
        for group in _groups(observed, Role.BUFFER)
        if group[0].place.ranks and _can_be_compared(group) and not are_equal(group)
    ]
    if diverged:
        first = min(diverged, key=_moment)
        message = f"buffer {subject(first[0])} differs on {rank_names(odd_ranks(first))}{places_of(first)}: {both_values(first)}"
        yield make_finding(ValueFindingKind.BUFFER, message, _BUFFER, observed, first)


def _groups(observed: ObservationIndex, role: Role) -> Iterator[list[Observation]]:
    """Yield the observations of several ranks of one thing in this role, the lowest rank first."""
    for key, observations in observed.together.items():
        if key[0] is role and len(observations) > 1:
            yield sorted(observations.values())


def _can_be_compared(group: Sequence[Observation]) -> bool:
    places = {(s.place.name, s.place.kind, s.place.dtype, s.place.shape, s.place.ranks) for s in group}
    return len(places) == 1


def _replicas(
    observed: ObservationIndex, starts: ConstantStarts, seen: Sequence[Observation]
) -> Iterator[tuple[list[Observation], str]]:
    """Yield the observations of one parameter that should be equal, with the evidence if that is not a call."""
    for ranks in dict.fromkeys(observation.place.ranks for observation in seen):
        group = [observation for observation in seen if observation.place.ranks == ranks]
        # Most parameters of an optimizer may be replicas while the rest are shards or experts.
        is_apart = group[0].place.trust is Trust.BESIDE and starts.activations_travel
        if _are_replicas(observed, group) and not is_apart:
            yield group, ""
    for inferred in (
        starts.infer(seen) if seen[0].place.role is Role.PARAMETER and not are_equal(seen) else ()
    ):
        yield (
            [observation for observation in seen if observation.rank in inferred.ranks],
            f"; {inferred.because}",
        )


def _are_replicas(observed: ObservationIndex, group: Sequence[Observation]) -> bool:
    place = group[0].place
    trust = {observation.place.trust for observation in group}
    if len(trust) > 1 or place.trust is None or not place.ranks or not _can_be_compared(group):
        return False
    # Without a module only a number identifies a parameter: another rank's #1 may be another tensor.
    is_weak = place.trust is Trust.BESIDE or (place.trust is Trust.REDUCED and place.model == NOWHERE)
    return not is_weak or _began_equal(observed, group)


def _began_equal(observed: ObservationIndex, group: Sequence[Observation]) -> bool:
    begun = observed.matching(Role.BEFORE, group[0]).values()
    return are_equal(begun) and not any(is_constant(each.content, each.place.dtype) for each in begun)


def _meet_again(observed: ObservationIndex, group: Sequence[Observation]) -> bool:
    """Whether they are equal when all ranks see them last: then they were meant to differ for a while."""
    later, number = group, group[0].number
    while len(later) == len(group):
        # Later observations count only while all ranks of the group have them.
        last = later
        number += 1
        role, model, name, index, _ = group[0].same_on_ranks
        later = list(observed.together.get((role, model, name, index, number), {}).values())
    return are_equal(last)


def _reason(observed: ObservationIndex, group: Sequence[Observation]) -> tuple[str, Consequence]:
    first = group[0]
    if first.place.role is Role.WRAPPED:
        return ", though the model is wrapped", _WROTE
    if first.place.role is Role.SHARED:
        return ", though its gradient was reduced and each rank steps a part of the parameters", _SHARED
    begun = observed.matching(Role.BEFORE, first).values()
    if first.number == 1 and not are_equal(begun):
        return ", and did so before the first step", _BEGAN
    # The reason decides the advice: a wrong start, a gradient that was not reduced, or the step itself.
    gradients = observed.matching(Role.GRADIENT, first).values()
    if not are_equal(gradients):
        return ", and so did its gradient", _GRADIENT
    return ", though its gradient did not", _STEP


def _parameter(observation: Observation) -> tuple[int, str]:
    return observation.place.model, observation.place.name


def _moment(group: Sequence[Observation]) -> tuple[int, int]:
    """Sort key: the time of the observation."""
    return (
        0 if group[0].place.role is Role.WRAPPED else 1,
        min(observation.position for observation in group),
    )
