"""Judge the observations of all ranks. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from disttest.extras.sanitizers.sanitizer import Judgement
from disttest.extras.sanitizers.values.nonfinite import find_nonfinite
from disttest.extras.sanitizers.values.observations import ObservationIndex
from disttest.extras.sanitizers.values.replicated import find_buffers, find_outputs, find_parameters
from disttest.extras.sanitizers.values.trace import Trace
from disttest.model import PluginFinding

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
