"""`disttest plan` for the nodes of a scheduler, and `disttest run` of a shard that asks for some."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from command_runner import command_runner
from fake_scheduler import FakeScheduler
from planning_cases import case

from disttest.errors import DisttestError, SchedulerError, UsageError
from disttest.extras.cluster.option_rows import RUN_OPTIONS
from disttest.extras.cluster.place import Size, read_nodes, size_of
from disttest.extras.cluster.protocol.launcher import Capacity
from disttest.extras.shards.plan_command import plan_command
from disttest.extras.shards.shard_plan import Grant, Plan, decode_plan
from disttest.extras.shards.shard_run import granted_options
from disttest.options.flags import flags, was_given
from disttest.runtime.controller.target_host import TargetHost

GPUS = Capacity(nodes=4, gpus_per_node=8, cpus_per_node=64, scheduler="fake")
CPUS = Capacity(nodes=3, gpus_per_node=0, cpus_per_node=16, scheduler="fake")
TESTS = [
    case("a", 1, backend="nccl", device="cuda"),
    case("b", 16, nodes=2, backend="nccl", device="cuda"),
]


class Planned:
    """What the command did."""

    def __init__(self, result: Any, folder: Path, asked: list[tuple[str, str]], collected: list[Any]) -> None:
        self.exit_code = result.exit_code
        self.message = str(result.exception) if isinstance(result.exception, DisttestError) else result.stderr
        if isinstance(result.exception, DisttestError):
            self.exit_code = int(result.exception.exit_code)
        elif result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.asked = asked
        self.folder = folder
        self._collected = collected

    @property
    def host(self) -> TargetHost:
        """The machine that the tests were collected for."""
        (host,) = filter(None, self._collected)
        return host

    @property
    def collected(self) -> bool:
        return bool(self._collected)

    @property
    def plan(self) -> Plan:
        return decode_plan((self.folder / "plan.json").read_bytes())


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Planned]:
    monkeypatch.chdir(tmp_path)

    def planned(*arguments: str, capacity: Capacity | Exception = GPUS) -> Planned:
        asked: list[tuple[str, str]] = []
        collected: list[Any] = []

        def pool_size(scheduler: str, partition: str, device: str) -> Size:
            asked.append((scheduler, partition))
            if isinstance(capacity, Exception):
                raise capacity
            return size_of(FakeScheduler(capacity=capacity).capacity(), device)

        def collect(
            _targets: object, _flags: object, _extra: object, _gpus: int, host: TargetHost | None
        ) -> Sequence[Any]:
            collected.append(host)
            return TESTS

        command = plan_command(collect, pool_size)
        result = command_runner().invoke(command, ["suite", *arguments], obj=["-k", "x"])
        return Planned(result, tmp_path, asked, collected)

    return planned


def test_the_scheduler_is_asked_and_the_tests_are_collected_for_its_nodes(plan) -> None:
    done = plan("--pool", "big:slurm:gpu", "--nodes", "2", "--matrix", "matrix.json")

    assert (0, [("slurm", "gpu")]) == (done.exit_code, done.asked), done.message
    assert TargetHost(gpus=8, device="cuda", pool=4, nodes=2) == done.host
    assert [(2, 8), (1, 1)] == [(s.grant.nodes, s.grant.ranks_per_node) for s in done.plan.shards]
    assert {("slurm", "gpu", 2)} == {
        (s.grant.scheduler, s.grant.partition, s.grant.spread) for s in done.plan.shards
    }
    entries = json.loads((done.folder / "matrix.json").read_text())["include"]
    assert [("big-1", 1, "slurm", 2), ("big-2", 2, "slurm", 1)] == [
        (entry["name"], entry["shard"], entry["launcher"], entry["nodes"]) for entry in entries
    ]


def test_a_scheduler_is_not_asked_for_what_the_words_say(plan) -> None:
    done = plan("--pool", "big:slurm::2x8", "--pool", "gpu1:1:2", capacity=SchedulerError("not installed"))

    assert (0, []) == (done.exit_code, done.asked), done.message
    assert TargetHost(gpus=8, device="cuda", pool=2) == done.host
    assert ["gpu1-1", "big-1"] == [shard.name for shard in done.plan.shards]


@pytest.mark.parametrize(
    ("capacity", "arguments", "host"),
    [
        (CPUS, (), TargetHost(gpus=0, device="cpu", pool=3)),
        (GPUS, ("--device", "cpu"), TargetHost(gpus=0, device="cpu", pool=4)),
    ],
)
def test_without_gpus_ranks_take_processors(plan, capacity, arguments, host) -> None:
    done = plan("--pool", "big:slurm", *arguments, capacity=capacity)

    assert host == done.host


def test_a_plan_for_runners_only_collects_for_this_machine(plan) -> None:
    done = plan("--pool", "gpu8:16:1")

    assert 6 == done.exit_code
    assert "no pool holds 16 ranks over 2 nodes" in done.message
    with pytest.raises(ValueError, match="not enough values"):
        _ = done.host


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--pool", "big:slurm:gpu:x"), 4, "'x' is not NODESxGPUS"),
        (("--pool", "gpu8:8:1", "--nodes", "2"), 4, "--nodes needs a --pool of a scheduler"),
        (("--shards", "2", "--nodes", "2"), 4, "--nodes needs a --pool of a scheduler"),
        (("--pool", "big:slurm", "--nodes", "5"), 6, "--nodes 5, and the pool has 4 nodes that work"),
        (("--pool", "big:slurm", "--pool", "big:1:1"), 4, "two pools are named 'big'"),
    ],
)
def test_bad_words_are_refused_before_anything_is_collected(plan, arguments, code, message) -> None:
    done = plan(*arguments)

    assert (code, False) == (done.exit_code, done.collected)
    assert message in done.message
    assert not list(done.folder.iterdir())


def test_what_the_scheduler_says_instead_of_an_answer_ends_the_command(plan) -> None:
    done = plan("--pool", "big:slurm:gpu", capacity=SchedulerError("Slurm says: Partition gpu not found"))

    assert (9, False) == (done.exit_code, done.collected)
    assert "Partition gpu not found" in done.message


# --- the shard's run


def taken(*arguments: str, grant: Grant | None) -> dict[str, Any]:
    """What the options of a run amount to."""
    chosen: dict[str, Any] = {}

    @click.command()
    @flags("run")
    def command(**given: Any) -> None:
        asked = {row.field: given.get(row.field, row.default) for row in RUN_OPTIONS}
        named = {row.field for row in RUN_OPTIONS if was_given(row)}
        if grant is not None:
            granted = granted_options(asked, grant, asked_nodes="nodes" in named)
            asked, named = asked | granted, named | granted.keys()
        nodes = read_nodes(asked, named)
        chosen.update(nodes.given if nodes else asked, record=nodes.record() if nodes else {})

    command.main(list(arguments), standalone_mode=False)
    return chosen


GRANT = Grant(scheduler="slurm", partition="gpu", nodes=2, ranks_per_node=8, spread=2)


def test_a_shard_brings_its_scheduler_and_is_one_allocation() -> None:
    given = taken(grant=GRANT)

    assert ("slurm", "gpu", 2, 1) == tuple(given[name] for name in ("launcher", "partition", "nodes", "jobs"))


def test_what_was_asked_of_a_cluster_is_on_record_as_far_as_it_was_given() -> None:
    words = (
        "--launcher",
        "slurm",
        "--nodes",
        "2",
        "--image",
        "ours",
        "--mount",
        "/a",
        "--mount",
        "/b",
        "--job-limit",
        "9",
    )
    assert taken(*words, grant=None)["record"] == {
        "launcher": "slurm",
        "nodes": "2",
        "job-limit": "9.0",
        "image": "ours",
        "mount": "/a\n/b",
    }
    assert {"partition": "gpu", "nodes": "2"}.items() <= taken(grant=GRANT)["record"].items()
    assert taken("--partition", "gpu", grant=None)["record"] == {}


def test_what_the_command_line_says_of_the_scheduler_wins() -> None:
    given = taken("--launcher", "local", "--partition", "other", "--nodes", "2", grant=GRANT)

    assert ("local", "other") == (given["launcher"], given["partition"])


def test_another_spread_than_the_plans_is_refused() -> None:
    for nodes in ("4", "1"):  # 1 is the default, and is refused all the same where it is said
        with pytest.raises(
            UsageError, match=f"--nodes {nodes} differs from the plan, which was made with --nodes 2"
        ):
            taken("--nodes", nodes, grant=GRANT)


def test_without_a_grant_nothing_changes() -> None:
    assert ("", 0) == tuple(taken(grant=None)[name] for name in ("launcher", "jobs"))
    with pytest.raises(UsageError, match="--nodes 2 needs a scheduler"):
        taken("--nodes", "2", grant=None)


@pytest.mark.parametrize("option", [("--container", "docker"), ("--mount", "/data")])
def test_what_is_said_of_a_container_needs_an_image(option: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=f"{option[0]} needs an --image"):
        taken(*option, grant=None)
    assert option[1] in str(taken(*option, "--image", "ours", grant=None))
