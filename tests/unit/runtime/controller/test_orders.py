"""Orders: what a parent writes, its child reads, and nothing of it is on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rank_specs import rank_spec

from disttest import plugin
from disttest.descriptors import is_open
from disttest.model import Frozen, Isolation, RunPart
from disttest.options.registry import RUN_OPTIONS
from disttest.options.run import RunOptions
from disttest.outgoing import OutputFilter, outgoing
from disttest.runtime.controller import orders
from disttest.runtime.controller.target_host import TargetHost

ODD = Path(os.fsdecode(b"/tmp/no-\xff-text"))
HOST = TargetHost(gpus=3, device="cuda", pool=2)
SHARED = orders.Shared(supervisor=7, host=HOST, threads={"OMP_NUM_THREADS": "3"}, data={"mine": [1, "two"]})


class Work(Frozen):
    """Data of a plugin."""

    file: Path
    numbers: tuple[int, ...]


SPEC = rank_spec(
    rank=1,
    world_pid=5,
    **{name: Path("/run", name) for name in ("stacks", "questions", "phases", "scratch", "log")},
    settings=RunOptions().for_worlds(),
    isolation=Isolation.FRESH,
)


def config_of(argument: str) -> Any:
    """A configuration as pytest makes it from this argument and nothing else."""
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    words = [argument] if argument else []
    return SimpleNamespace(stash=pytest.Stash(), known_args_namespace=parser.parse_known_args(words))


@pytest.mark.parametrize(
    "order",
    [
        orders.ControllerOrder(
            shared=SHARED,
            part=RunPart(plan_id="p", shard=2),
            timings=(ODD, Path("b.jsonl")),
            failed_first=True,
            columns=80,
            leaving=3,
            claim=4,
            journal=5,
        ),
        orders.ListerOrder(shared=SHARED),
        orders.PluginOrder(plugin="mine", work={"a": [1]}),
        orders.RankOrder(shared=SHARED, modules=("a.py",), spec=SPEC, channel_fd=6),
        orders.ForkSourceOrder(shared=SHARED, modules=("a.py",), line_fd=6, answer="/run/answer"),
    ],
    ids=lambda order: type(order).__name__,
)
def test_a_child_reads_the_order_that_its_parent_wrote(order: orders.AnyOrder) -> None:
    fd = orders.write_order(order, ledger=-1)
    config = config_of(f"{orders.FLAG}={fd}")

    assert orders.is_given(config)
    assert order == orders.order_of(config)
    assert not is_open(fd), "tests would find it open"
    assert order == orders.order_of(config), "it is read once"
    is_collecting = isinstance(order, orders.RankOrder | orders.ForkSourceOrder)
    assert is_collecting == (orders.collecting_order(config) is not None)


def test_plain_pytest_is_a_controller_without_a_supervisor() -> None:
    config = config_of("")

    assert not orders.is_given(config)
    assert orders.ControllerOrder() == orders.order_of(config)
    assert not orders.order_of(config).is_supervised
    assert orders.collecting_order(config) is None
    assert orders.plugin_work(config, "mine") is None


def test_the_work_of_a_plugin_is_for_that_plugin() -> None:
    work = Work(file=ODD, numbers=(1, 2))
    config = config_of(
        f"{orders.FLAG}={orders.write_order(orders.PluginOrder(plugin='mine', work=work), -1)}"
    )

    assert orders.plugin_work(config, "other") is None
    assert work == orders.from_data(orders.plugin_work(config, "mine"), Work)


def test_data_of_a_plugin_keep_their_type() -> None:
    order = orders.ListerOrder(shared=orders.Shared(data={"mine": Work(file=ODD, numbers=(3,))}))
    config = config_of(f"{orders.FLAG}={orders.write_order(order, -1)}")

    assert Work(file=ODD, numbers=(3,)) == orders.from_data(orders.order_of(config).shared.data["mine"], Work)


@pytest.mark.parametrize("content", [None, b"", b'{"type":"emperor"}', b"[]"])
def test_a_copied_argument_is_refused_with_a_message(content: bytes | None) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    os.close(reading)
    fd = reading
    if content is not None:
        fd = os.memfd_create("other")
        os.write(fd, content)

    with pytest.raises(pytest.UsageError, match=f"{orders.FLAG}={fd} is not an order of this process"):
        orders.order_of(config_of(f"{orders.FLAG}={fd}"))
    assert content is None or is_open(fd), "the descriptor of another file stays open"
    if content is not None:
        os.close(fd)


def test_only_a_descriptor_is_on_the_command_line_and_the_parent_closes_it() -> None:
    order = orders.ListerOrder(shared=orders.Shared(data={"mine": "a secret of some length"}))
    with orders.given_order(order) as (argument, descriptors):
        fd = descriptors[0]
        assert f"{orders.FLAG}={fd}" == argument
        assert b"a secret of some length" in Path(f"/proc/self/fd/{fd}").read_bytes()

    assert not is_open(fd)


def test_the_filter_of_texts_is_shared_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sharing(OutputFilter):
        shared = 1

    monkeypatch.setattr(outgoing, "_filter", Sharing())
    with orders.given_order(orders.ListerOrder(), 2) as (argument, descriptors):
        assert 1 == orders.order_of(config_of(f"{orders.FLAG}={os.dup(descriptors[0])}")).ledger
        assert [2, 1] == list(descriptors[1:])
        assert argument.endswith(str(descriptors[0]))
    monkeypatch.setattr(outgoing, "_filter", OutputFilter())
    with orders.given_order(orders.ListerOrder(), 2) as (_, descriptors):
        assert [2] == list(descriptors[1:])


def test_the_order_is_the_only_option_that_users_have_not() -> None:
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    (group,) = [each for each in parser._groups if each.name == "disttest"]
    names = {name for option in group.options for name in option.names()}

    of_users = {f"--disttest-{option.name}" for option in RUN_OPTIONS if not option.secret}
    assert {orders.FLAG} == names - of_users


def test_processes_that_collect_for_ranks_do_not_get_the_order_of_their_controller() -> None:
    arguments = ["-p", "disttest", "x.py", f"{orders.FLAG}=203", "--disttest-slots=2"]
    config: Any = SimpleNamespace(invocation_params=SimpleNamespace(args=arguments))

    assert ["-p", "disttest", "x.py", "--disttest-slots=2"] == orders.own_arguments(config)
