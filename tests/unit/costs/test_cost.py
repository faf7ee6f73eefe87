"""What a run cost."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from planning_cases import case
from shard_runs import START_S, ShardRun, cases

from disttest.extras.shards.merging import merge
from disttest.model import Hardware, ShardSpan, WorldShape
from disttest.plugins.costs.cost import cost_of, costs_of
from disttest.plugins.costs.lines import cost_lines
from disttest.plugins.costs.makespan import least_makespan_s
from disttest.results.fold import RunResult, WorldSpan, fold
from disttest.results.journal import FILE_NAME, read_events


def run_of(path: Path) -> RunResult:
    """Two slots; each test starts for half a second and runs for one, on both; between them nothing runs."""
    run = ShardRun(path)
    for test in cases("a", "b"):
        run.run(test)
        run.now_s += 1
    run.finish()
    return fold(read_events(path / FILE_NAME))


def test_slot_time_is_used_lost_or_idle(tmp_path: Path) -> None:
    cost = cost_of(run_of(tmp_path))

    assert ("GPU", 2) == (cost.unit, cost.slots)
    assert (4.0, 2.0, 2.0) == (cost.used_slot_s, cost.startup_slot_s, cost.idle_slot_s)
    assert pytest.approx(4 / 60) == cost.used_minutes
    assert 0.25 == cost.idle_share


def test_the_makespan_stands_against_its_bound(tmp_path: Path) -> None:
    cost = cost_of(run_of(tmp_path))

    assert (4.0, 3.0) == (cost.makespan_s, cost.lower_bound_s)


def test_worlds_as_wide_as_the_machine_gain_nothing(tmp_path: Path) -> None:
    cost = cost_of(run_of(tmp_path))

    assert 4.0 == cost.with_one_more_s  # two worlds, both as wide as the machine: a third GPU changes nothing
    assert cost.with_one_fewer_s is None  # they would no longer fit


def test_narrow_worlds_gain_from_one_more_slot() -> None:
    run = narrow_run(worlds=6, slots=2)

    cost = cost_of(run)

    assert (3.0, 3.0) == (cost.makespan_s, cost.lower_bound_s)
    assert (2.0, 6.0) == (cost.with_one_more_s, cost.with_one_fewer_s)


def narrow_run(worlds: int, slots: int) -> RunResult:
    """Worlds of one rank and one second each, side by side without a gap."""
    spans = tuple(
        WorldSpan(
            world_id=f"w{number}",
            shape=WorldShape(size=1, backend="gloo"),
            slots=(f"cpu:{number % slots}",),
            started_at_s=number // slots,
            ended_at_s=number // slots + 1,
        )
        for number in range(worlds)
    )
    return RunResult(
        run_id="",
        argv=(),
        root="",
        hardware=Hardware(cpus=slots),
        slots=slots,
        disttest="",
        started_at_s=0,
        ended_at_s=worlds / slots,
        exit_code=0,
        reason="",
        tests=(),
        collection_errors=(),
        worlds=spans,
        notes=(),
    )


def test_a_world_without_an_end_lasts_as_long_as_the_run(tmp_path: Path) -> None:
    run = ShardRun(tmp_path)
    (test,) = cases("a")
    run.collect(test)
    run.start(test)
    run.now_s += 10
    run.finish()

    cost = cost_of(fold(read_events(tmp_path / FILE_NAME)))

    assert (20.0, 1.0) == (cost.used_slot_s, cost.startup_slot_s)


def test_beside_gpus_the_cpu_costs_nothing_and_bounds_the_time() -> None:
    """Two GPUs for two seconds, and one CPU slot of two that is busy for five."""
    on_gpus = narrow_run(worlds=4, slots=2)
    worlds = [
        msgspec.structs.replace(
            world,
            shape=WorldShape(size=1, backend="nccl", device="cuda"),
            slots=(world.slots[0].replace("cpu", "gpu"),),
        )
        for world in on_gpus.worlds
    ]
    long = WorldSpan(
        world_id="long",
        shape=WorldShape(size=1, backend="gloo"),
        slots=("cpu:0",),
        started_at_s=0,
        ended_at_s=5,
    )
    run = msgspec.structs.replace(
        on_gpus,
        hardware=Hardware(cpus=4, gpus=("H100",) * 2),
        worlds=(*worlds, long),
        cpu_slots=2,
        ended_at_s=5,
    )

    cost = cost_of(run)

    assert ("GPU", 2) == (cost.unit, cost.slots)
    assert (
        4.0 + 6.0 == cost.startup_slot_s + cost.idle_slot_s
    )  # no test is in it, so all of the worlds is start-up
    assert (5.0, 5.0) == (cost.makespan_s, cost.lower_bound_s)
    assert (5.0, 5.0) == (cost.with_one_more_s, cost.with_one_fewer_s)  # the CPU takes as long with any GPUs


def test_on_the_cpu_of_a_machine_with_gpus_no_gpu_is_counted() -> None:
    """Its GPUs were left alone (``--device cpu``)."""
    run = msgspec.structs.replace(narrow_run(worlds=4, slots=2), hardware=Hardware(cpus=2, gpus=("H100",)))

    assert ("CPU slot", 2) == (cost_of(run).unit, cost_of(run).slots)
    held = cost_of(msgspec.structs.replace(run, slots=1, cpu_slots=2))  # taken, and not used
    assert ("GPU", 1, 2.0) == (held.unit, held.slots, held.idle_slot_s)


def test_merged_shards_count_while_they_ran(tmp_path: Path) -> None:
    """The second shard started an hour later: its GPUs were nobody's before."""
    for number in (1, 2):
        run = ShardRun(tmp_path / str(number), number, at_s=START_S + 3600 * number)
        run.run(case(f"t{number}"), seconds=9.5)
        run.finish()
    into = tmp_path / "merged"
    into.mkdir()

    cost = cost_of(merge([tmp_path], into))

    assert (10.0, 0.0, "runner") == (cost.makespan_s, cost.idle_slot_s, cost.runners)
    assert (38.0, 2.0) == (cost.used_slot_s, cost.startup_slot_s)
    assert (10.0, 20.0) == (cost.with_one_more_s, cost.with_one_fewer_s)


def test_merged_shards_with_and_without_gpus_are_counted_apart() -> None:
    """A sum of GPU-minutes and minutes of the CPU is no price."""
    cpu, gpu = narrow_run(worlds=8, slots=2), narrow_run(worlds=3, slots=1)
    shapes = {"cpu": "gloo", "cuda": "nccl"}
    worlds = [
        msgspec.structs.replace(
            world,
            world_id=f"{label}/{world.world_id}",
            shape=WorldShape(size=1, backend=shapes[device], device=device),
        )
        for label, device, run in (("shard-1", "cpu", cpu), ("shard-2", "cuda", gpu))
        for world in run.worlds
    ]
    spans = tuple(
        ShardSpan(
            shard=number,
            run_id="",
            directory="",
            hardware=run.hardware,
            slots=run.slots,
            started_at_s=0,
            ended_at_s=run.ended_at_s,
            exit_code=0,
            label=f"shard-{number}",
        )
        for number, run in ((1, cpu), (2, gpu))
    )
    run = msgspec.structs.replace(cpu, shards=spans, worlds=tuple(worlds), slots=3)

    on_gpus, on_cpu = costs_of(run)

    assert ("GPU", 1, 3.0, "GPU runner") == (
        on_gpus.unit, on_gpus.slots, on_gpus.startup_slot_s, on_gpus.runners,
    )  # fmt: skip
    assert ("CPU slot", 2, 8.0, "CPU runner") == (
        on_cpu.unit, on_cpu.slots, on_cpu.startup_slot_s, on_cpu.runners,
    )  # fmt: skip
    assert 4.0 == least_makespan_s(run)
    lines = dict(cost_lines(run))
    assert lines["GPU-minutes"].endswith("(0% of 1 GPU)")
    assert lines["CPU slot minutes"].endswith("(0% of 2 CPU slots)")
    assert "no change" == lines["one GPU runner more"]  # the CPU takes longer in any case
    assert "shorter" in lines["one CPU runner more"]
    assert "none would be left" == lines["one GPU runner fewer"] == lines["one CPU runner fewer"]


def test_an_empty_run_costs_nothing(tmp_path: Path) -> None:
    ShardRun(tmp_path).finish()

    cost = cost_of(fold(read_events(tmp_path / FILE_NAME)))

    assert (0, 0, 0, 0.0) == (
        cost.used_slot_s,
        cost.startup_slot_s,
        cost.idle_slot_s,
        cost.idle_share,
    )
    assert cost.with_one_more_s is None
