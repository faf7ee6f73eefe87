"""Frozen data of the product: tests, records of ranks, results of runs.

Everything that crosses a process border or reaches a report is one of these types. Times named ``at_s`` are seconds
since the Unix epoch, derived from the monotonic clock so that a run's clock never jumps; other ``*_s`` fields are
durations in seconds.

There is one module for each subject; other packages import all names from here.
"""

from disttest.model.attempt_result import (
    FROM_ROOT,
    TO_ROOT,
    Edge,
    HangCause,
    PluginFinding,
    RankCalls,
    Section,
    SeenCall,
    TestResult,
    WaitGraph,
    WindowEdge,
    short_place,
)
from disttest.model.cases import ALONE, FEW_RANKS, Batch, Isolation, Slot, TestCase, WorldKind, WorldShape
from disttest.model.frozen import SCHEMA_VERSION, UNREADABLE, Code, Count, Frozen, Moment, Seconds
from disttest.model.rank_record import (
    MAIN_RANK,
    RANKS_DISAGREE,
    Cause,
    Collective,
    FactKind,
    Outcome,
    RankEnd,
    RankRecord,
    Recorded,
    RecordedFact,
    RecordedWarning,
    consecutive,
    group_title,
    rank_name,
    rank_names,
)
from disttest.model.run_facts import CpuStep, FlakyRule, Hardware, Invocation, RunPart, ShardSpan, VerdictRule

__all__ = [
    "ALONE",
    "FEW_RANKS",
    "FROM_ROOT",
    "MAIN_RANK",
    "RANKS_DISAGREE",
    "SCHEMA_VERSION",
    "TO_ROOT",
    "UNREADABLE",
    "Batch",
    "Cause",
    "Code",
    "Collective",
    "Count",
    "CpuStep",
    "Edge",
    "FactKind",
    "FlakyRule",
    "Frozen",
    "HangCause",
    "Hardware",
    "Invocation",
    "Isolation",
    "Moment",
    "Outcome",
    "PluginFinding",
    "RankCalls",
    "RankEnd",
    "RankRecord",
    "Recorded",
    "RecordedFact",
    "RecordedWarning",
    "RunPart",
    "Seconds",
    "Section",
    "SeenCall",
    "ShardSpan",
    "Slot",
    "TestCase",
    "TestResult",
    "VerdictRule",
    "WaitGraph",
    "WindowEdge",
    "WorldKind",
    "WorldShape",
    "consecutive",
    "group_title",
    "rank_name",
    "rank_names",
    "short_place",
]
