"""What a run cost, in words: slot-minutes used and lost, the makespan against its bound, one more and one fewer."""

from __future__ import annotations

from typing import NamedTuple

from disttest.reports.text import count, duration
from disttest.results.cost import Cost, cost_of
from disttest.results.fold import RunResult


class CostLine(NamedTuple):
    """A fact, and its name."""

    name: str
    fact: str


def cost_lines(run: RunResult) -> list[CostLine]:
    """Return what there is to say; nothing of a run in which no world ran."""
    if not run.worlds or run.duration_s <= 0:
        return []
    cost = cost_of(run)
    minutes = "GPU-minutes" if cost.unit == "GPU" else f"{cost.unit} minutes"
    spent = f"{_minutes(cost.used_minutes)} in tests, {_minutes(cost.startup_minutes)} lost to starting and ending worlds"
    if not cost.slots:  # an engine has them: nobody knows here what idled
        return [CostLine(minutes, spent), CostLine("makespan", duration(cost.makespan_s))]
    idle = f"{_minutes(cost.idle_minutes)} idle ({cost.idle_share:.0%} of {count(cost.slots, cost.unit)})"
    lines = [CostLine(minutes, f"{spent}, {idle}"), CostLine("makespan", _makespan(cost))]
    more, fewer = f"one {cost.runners} more", f"one {cost.runners} fewer"
    if cost.with_one_more_s is not None:
        lines.append(CostLine(more, _instead(cost.with_one_more_s, cost)))
    if cost.with_one_fewer_s is not None:
        lines.append(CostLine(fewer, _instead(cost.with_one_fewer_s, cost)))
    elif cost.with_one_more_s is not None:
        alone = (len(run.shards) if run.shards else cost.slots) <= 1
        lines.append(CostLine(fewer, "none would be left" if alone else "too few for the widest world"))
    return lines


def _minutes(minutes: float) -> str:
    return f"{minutes:,.1f}" if minutes >= 10 else f"{minutes:.2f}"


def _makespan(cost: Cost) -> str:
    if not cost.lower_bound_s:
        return duration(cost.makespan_s)
    least = f"the least that these worlds need ({duration(cost.lower_bound_s)})"
    return f"{duration(cost.makespan_s)}, {cost.over_bound:.2f} times {least}"


def _instead(seconds: float, cost: Cost) -> str:
    change_s = seconds - cost.makespan_s
    if abs(change_s) < 0.005 * cost.makespan_s:
        return "no change"
    return f"about {duration(seconds)} ({duration(abs(change_s))} {'longer' if change_s > 0 else 'shorter'})"
