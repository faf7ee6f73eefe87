"""Findings of plugins, and graphs of ranks that wait for each other, in the form that the page draws."""

from __future__ import annotations

from typing import Any

from disttest.model import Edge, PluginFinding, Section, WaitGraph, rank_name
from disttest.reports.text import duration, one_line

MOST_DRAWN = 16
"""Number of ranks in a graph. With more, the arrows hide each other and the list is clearer."""

_MOST_LINES = 200
"""Number of lines of a plugin's section. ``results.json`` has all of them."""


def section_data(section: Section) -> dict[str, Any]:
    """Return the data of a plugin's section in the report of one test."""
    return {
        "title": one_line(section.title, 300),
        "lines": [one_line(line, 2000) for line in section.lines[:_MOST_LINES]],
    }


def finding_data(finding: PluginFinding) -> dict[str, Any]:
    """Return the data of one finding, with the calls of its ranks in columns."""
    return {
        "title": one_line(f"{finding.finder}: {finding.kind}"),
        "message": one_line(finding.message, 4000),
        "effect": one_line(finding.effect, 2000),
        "advice": one_line(finding.advice, 2000),
        "fails": finding.fails,
        "orders": [
            {
                "name": rank_name(order.rank),
                "calls": [
                    {
                        "what": one_line(call.what, 300),
                        "where": one_line(call.where, 200),
                        "decides": call.decides,
                        "window": str(call.window or ""),
                        "same": call.same,
                    }
                    for call in order.calls
                ],
            }
            for order in finding.orders
        ],
    }


def waits_data(waits: WaitGraph) -> dict[str, Any]:
    """Return the data of the ranks and their waits. With too many ranks, none is drawn."""
    ranks = sorted({rank for edge in waits.edges for rank in (edge.rank, *edge.ranks)})
    drawn = ranks if len(ranks) <= MOST_DRAWN else []
    return {
        "nodes": [{"rank": rank, "finished": rank in waits.finished} for rank in drawn],
        "edges": [{"rank": edge.rank, "ranks": edge.ranks, "text": _sentence(edge)} for edge in waits.edges],
        "label": f"{len(drawn)} ranks, each with the ranks that it waits for; the list below is the same in words",
    }


def _sentence(edge: Edge) -> str:
    """Describe a wait: ``rank 0 waits in recv #1 from rank 1 at test_x.py:3 (1.2 s) for rank 1, which …``."""
    place = f" at {edge.where}" if edge.where else ""
    awaited = f" for {', '.join(map(rank_name, edge.ranks))}" if edge.ranks else ""
    reason = f", {edge.reason}" if edge.reason else ""
    waits = f"{rank_name(edge.rank)} waits in {edge.what}{place} ({duration(edge.since_s)})"
    return one_line(f"{waits}{awaited}{reason}", 1000)
