"""Hooks of plans, shards and merged results."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click
    import pytest

    from disttest.cli.run_tests import RunRequest
    from disttest.model import TestCase
    from disttest.options.option import Option
    from disttest.runtime.controller.session import TestSelection


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Options ``--plan`` and ``--shard`` of runs, and those of the two commands."""
    from disttest.extras.shards.option_rows import OPTIONS

    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest plan`` and ``disttest merge``."""
    from disttest.extras.shards.merge_command import merge_command, write_merged
    from disttest.extras.shards.plan_collection import collect_for_plan
    from disttest.extras.shards.plan_command import plan_command

    group.add_command(plan_command(collect_for_plan))
    group.add_command(merge_command(write_merged))


@hookimpl(tryfirst=True)
def disttest_prepare_run(request: RunRequest) -> RunRequest | None:
    """Turn the run into that of a shard if ``--plan`` and ``--shard`` are given."""
    from disttest.extras.shards.shard_run import prepare_shard

    return prepare_shard(request)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that pass the shard to a pytest session."""
    group, internal = parser.getgroup("disttest"), argparse.SUPPRESS
    group.addoption("--disttest-plan", dest="disttest_plan", help=internal)
    group.addoption("--disttest-shard", dest="disttest_shard", type=int, default=0, help=internal)


@hookimpl
def disttest_select_tests(
    items: Sequence[pytest.Item], describe: Callable[[pytest.Item], TestCase], config: pytest.Config
) -> TestSelection | None:
    """Select the tests of the shard."""
    path = config.getoption("disttest_plan")
    if not path:
        return None
    from disttest.extras.shards.shard_run import select_shard
    from disttest.runtime.controller.session import RUN

    device = config.stash[RUN].host.device
    return select_shard(path, config.getoption("disttest_shard"), [*map(describe, items)], device)
