"""A process marks where its CPU time goes, if somebody has asked."""

from __future__ import annotations

import resource

import pytest

from disttest.host import cpu_marks
from disttest.host.cpu_marks import CpuMarks
from disttest.model import CpuStep


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch):
    """What this process and its children have used by now: CPU seconds and faults."""
    amounts = {resource.RUSAGE_SELF: (1.0, 10), resource.RUSAGE_CHILDREN: (0.0, 0)}
    monkeypatch.setattr(cpu_marks, "_used", lambda whose: cpu_marks._Used(*amounts[whose]))
    return amounts


def test_a_step_is_what_was_used_since_the_last_one(used):
    marks = CpuMarks("world", asked=True, since_start=False)
    used[resource.RUSAGE_SELF] = (1.5, 12)
    marks.mark("start")
    used[resource.RUSAGE_SELF] = (1.75, 12)
    marks.mark("close")

    start, close = marks.take()
    assert CpuStep(role="world", step="start", cpu_s=0.5, faults=2) == start
    assert CpuStep(role="world", step="close", cpu_s=0.25) == close
    assert () == marks.take()


def test_the_first_step_of_a_process_may_be_all_since_its_start(used):
    marks = CpuMarks("rank", asked=True)
    marks.mark("start")

    assert (CpuStep(role="rank", step="start", cpu_s=1.0, faults=10),) == marks.take()


def test_what_children_have_not_told_is_a_step_of_theirs(used):
    marks = CpuMarks("world", asked=True)
    told = [CpuStep(role="rank", step=step, cpu_s=0.25, faults=3) for step in ("start", "call")]
    marks.add_of_child(told)
    used[resource.RUSAGE_CHILDREN] = (0.75, 7)
    marks.mark_children("rank", "fork and end")

    assert (*told, CpuStep(role="rank", step="fork and end", cpu_s=0.25, faults=1)) == marks.take()


def test_a_step_that_comes_again_is_added(used):
    marks = CpuMarks("rank", asked=True, since_start=False)
    for cpu_s in (1.5, 1.75):
        used[resource.RUSAGE_SELF] = (cpu_s, 10)
        marks.mark("call")

    assert (CpuStep(role="rank", step="call", cpu_s=0.75),) == marks.take()


def test_nothing_is_read_unless_asked(monkeypatch):
    monkeypatch.setattr(cpu_marks, "_used", None)
    marks = CpuMarks("rank", asked=False, since_start=False)
    marks.mark("start")
    marks.mark_children("rank", "fork and end")

    assert () == marks.take()
