"""Judge the observations of all ranks; find the origin of NaN or infinity, and how it reached others. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from disttest.extras.sanitizers.sanitizer import Consequence, Judgement
from disttest.extras.sanitizers.values.contents import index_of
from disttest.extras.sanitizers.values.observations import (
    Observation,
    ObservationIndex,
    at,
    describe,
    subject,
)
from disttest.extras.sanitizers.values.replicated import find_buffers, find_outputs, find_parameters
from disttest.extras.sanitizers.values.trace import Role, Trace
from disttest.extras.sanitizers.values.value_findings import ValueFindingKind, make_finding
from disttest.model import PluginFinding, rank_names

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
    effect = _first_effect(observed)
    if effect is None:
        return
    first = {rank: bad for rank in observed.of_rank if (bad := _first_bad(observed, rank))}
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
