"""What a run cost stands in every report for people."""

from __future__ import annotations

import types

import msgspec
import pytest
from rendered import render_final
from sample_runs import EPOCH_S, SampleRun

from disttest.hookspecs import hookimpl
from disttest.model import WorldShape
from disttest.plugin_manager import Plugins
from disttest.plugins.costs.lines import cost_lines
from disttest.plugins.html.render import render_html
from disttest.plugins.summary.render import render_summary
from disttest.reports import aggregates, reporter
from disttest.reports.reporter import ReportFacts
from disttest.results.fold import RunResult, WorldSpan


def run_of(*, gpus: int, worlds: int, slots: int = 4, size: int = 1, seconds: float = 60.0) -> RunResult:
    """Worlds side by side on as many slots as there are, one test each."""
    sample = SampleRun(gpus=("NVIDIA H100",) * gpus, slots=slots)
    kind = "gpu" if gpus else "cpu"
    for number in range(worlds):
        first = number * size % slots
        at_s = EPOCH_S + number * size // slots * seconds
        held = tuple(f"{kind}:{first + slot}" for slot in range(size))
        sample.test(name=f"test_{number}", size=size, slots=held, seconds=seconds, at_s=at_s)
    return sample.finish()


def test_slot_time_is_told_by_where_it_went():
    (minutes, fact), *_ = cost_lines(run_of(gpus=4, worlds=6))

    assert minutes == "GPU-minutes"
    used, lost, idle = (part.split(" ")[0] for part in fact.split(", "))
    assert used == "6.00"
    assert float(lost) < 0.5
    assert float(idle) == pytest.approx(2.0, abs=0.5)
    assert fact.endswith("of 4 GPUs)")


def test_the_makespan_stands_against_the_least_that_is_needed():
    lines = dict(cost_lines(run_of(gpus=4, worlds=8)))

    assert "times the least that these worlds need (2 min 0" in lines["makespan"]


def test_of_a_schedulers_slots_nothing_is_said_but_what_was_held():
    run = msgspec.structs.replace(run_of(gpus=4, worlds=8), slots=0)

    (_, fact), (_, makespan) = cost_lines(run)

    assert fact.startswith("8.00 in tests, ")
    assert fact.endswith(" lost to starting and ending worlds")
    assert makespan.startswith("2 min 0")


def test_one_more_and_one_fewer():
    lines = dict(cost_lines(msgspec.structs.replace(run_of(gpus=0, worlds=12, slots=3), plan_id="of a pool")))

    assert "(1 min 0" in lines["one CPU slot more"]
    assert lines["one CPU slot more"].endswith(" shorter)")
    assert "(2 min 0" in lines["one CPU slot fewer"]
    assert lines["one CPU slot fewer"].endswith(" longer)")


def test_what_can_not_be_fewer():
    assert (
        dict(cost_lines(run_of(gpus=4, worlds=2, size=4)))["one GPU fewer"] == "too few for the widest world"
    )
    assert dict(cost_lines(run_of(gpus=1, worlds=2, slots=1)))["one GPU fewer"] == "none would be left"


def test_a_slot_that_would_not_help_is_said_not_to():
    assert dict(cost_lines(run_of(gpus=4, worlds=2, size=4)))["one GPU more"] == "no change"


def test_the_cpu_of_one_machine_costs_nobody_anything():
    run = run_of(gpus=0, worlds=2, slots=2, size=2)

    assert [] == cost_lines(run)
    assert "one CPU slot fewer" not in dict(cost_lines(msgspec.structs.replace(run, plan_id="of a pool")))


def test_a_run_without_worlds_has_nothing_to_tell():
    sample = SampleRun()
    sample.test(size=None)

    assert cost_lines(sample.finish()) == []
    assert cost_lines(SampleRun().finish()) == []


@pytest.mark.parametrize("render", [render_final, render_summary, render_html])
def test_every_report_for_people_tells_it(render):
    told = " ".join(render(run_of(gpus=4, worlds=6)).replace("&#45;", "-").replace("&#40;", "(").split())

    assert "GPU-minutes" in told
    assert "6.00 in tests" in told
    assert "one GPU fewer" in told


@pytest.mark.parametrize("render", [render_final, render_summary, render_html])
def test_without_the_plugin_no_report_shows_the_cost(render, monkeypatch):
    plugins = Plugins(["disttest.costs"])
    monkeypatch.setattr(reporter, "plugin_manager", lambda: plugins)

    shown = render(run_of(gpus=4, worlds=6))

    assert "6.00 in tests" not in shown
    assert "one GPU fewer" not in shown


@pytest.mark.parametrize("render", [render_final, render_summary, render_html])
def test_facts_of_a_second_plugin_follow(render, monkeypatch):
    def disttest_report_facts(run):
        return [ReportFacts(section="carbon", facts=(("carbon dioxide", f"{len(run.tests)} grams"),))]

    plugins = Plugins()
    second = types.ModuleType("second")
    second.disttest_report_facts = hookimpl(disttest_report_facts)
    plugins.add(second, "second")
    monkeypatch.setattr(reporter, "plugin_manager", lambda: plugins)

    shown = render(run_of(gpus=4, worlds=6))

    assert "one GPU fewer" in shown
    assert "carbon dioxide" in shown
    assert "6 grams" in shown


def test_worlds_on_the_cpu_cost_no_gpu_minutes_in_a_merged_run_either():
    """There their slots have other names: ``shard-1/cpu:0``."""
    worlds = [
        WorldSpan(
            world_id=name,
            shape=WorldShape(size=2, backend="gloo", device=device),
            slots=(f"shard-1/{device}:0", f"shard-1/{device}:1"),
            started_at_s=0,
        )
        for name, device in (("w1", "cpu"), ("w2", "cuda"))
    ]

    assert aggregates.gpus_by_world(worlds) == {"w1": 0, "w2": 2}
