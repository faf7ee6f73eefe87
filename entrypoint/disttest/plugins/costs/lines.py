"""Text about the cost of a run: slot-minutes used and lost, makespan and bound, one slot more or fewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from disttest.plugins.costs.cost import Cost, costs_of
from disttest.reports.text import count, duration
from disttest.results.fold import RunResult


class CostLine(NamedTuple):
    """A fact and its name."""

    name: str
    fact: str


def cost_lines(run: RunResult) -> list[CostLine]:
    """Return the lines about cost; none for a run without worlds, or on slots for which no one waits.

    The CPU of a single machine is such a case: a developer's laptop costs nothing per minute.
    """
    pooled = run.shards or run.plan_id or run.invocation.options.get("launcher")
    on_gpus = any(world.on_gpus for world in run.worlds)
    if not run.worlds or run.duration_s <= 0 or not (pooled or on_gpus):
        return []
    costs = costs_of(run)
    lines = [_spent(cost) for cost in costs]
    longest = max(costs, key=lambda cost: cost.makespan_s)
    if not longest.slots:
        return [*lines, CostLine("makespan", duration(longest.makespan_s))]
    bound_s = max(cost.lower_bound_s for cost in costs)
    lines.append(CostLine("makespan", _makespan(longest.makespan_s, bound_s)))
    for cost in costs:
        others_s = max((other.makespan_s for other in costs if other is not cost), default=0.0)
        lines += _one_more_or_fewer(cost, run, longest.makespan_s, others_s)
    return lines


def _spent(cost: Cost) -> CostLine:
    minutes = "GPU-minutes" if cost.unit == "GPU" else f"{cost.unit} minutes"
    spent = f"{_minutes(cost.used_minutes)} in tests, {_minutes(cost.startup_minutes)} lost to starting and ending worlds"
    # A scheduler owns the slots, so their idle time is unknown here.
    if not cost.slots:
        return CostLine(minutes, spent)
    idle = f"{_minutes(cost.idle_minutes)} idle ({cost.idle_share:.0%} of {count(cost.slots, cost.unit)})"
    return CostLine(minutes, f"{spent}, {idle}")


def _one_more_or_fewer(cost: Cost, run: RunResult, makespan_s: float, others_s: float) -> Iterator[CostLine]:
    """Estimate the run with one slot more and fewer; ``others_s`` is the time of slots of another kind."""
    if cost.with_one_more_s is None:
        return
    more, fewer = f"one {cost.runners} more", f"one {cost.runners} fewer"
    yield CostLine(more, _instead(max(cost.with_one_more_s, others_s), makespan_s))
    if cost.with_one_fewer_s is not None:
        yield CostLine(fewer, _instead(max(cost.with_one_fewer_s, others_s), makespan_s))
    elif run.shards or cost.slots <= 1:
        yield CostLine(fewer, "none would be left")
    # Ranks can share a CPU but not a GPU.
    elif cost.unit == "GPU":
        yield CostLine(fewer, "too few for the widest world")


def _minutes(minutes: float) -> str:
    return f"{minutes:,.1f}" if minutes >= 10 else f"{minutes:.2f}"


def _makespan(makespan_s: float, bound_s: float) -> str:
    if not bound_s:
        return duration(makespan_s)
    least = f"the least that these worlds need ({duration(bound_s)})"
    return f"{duration(makespan_s)}, {makespan_s / bound_s:.2f} times {least}"


def _instead(seconds: float, makespan_s: float) -> str:
    change_s = seconds - makespan_s
    # Smaller changes are noise of the estimate.
    if abs(change_s) < 0.005 * makespan_s:
        return "no change"
    return f"about {duration(seconds)} ({duration(abs(change_s))} {'longer' if change_s > 0 else 'shorter'})"
