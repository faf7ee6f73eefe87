"""Collect the tests of a plan."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from disttest.cli.words import warn
from disttest.errors import ExitCode, UsageError
from disttest.model import TestCase
from disttest.options.run import filled, resolve_options
from disttest.planning.backends import is_accelerator
from disttest.planning.targets import resolve_targets
from disttest.plugin_manager import plugin_manager


def collect_for_plan(
    targets: tuple[str, ...], flags: dict[str, str | None], pytest_args: Sequence[str], gpus: int
) -> Sequence[TestCase]:
    """Collect the tests of a plan. A test that cannot be collected would be missing in all shards, so it is an error.

    Args:
        targets: targets of the plan.
        flags: options of the runs, by their names for pytest.
        pytest_args: further arguments for pytest.
        gpus: GPUs of the largest runner; 0 if unknown.

    Raises:
        UsageError: a test cannot be collected.
    """
    from disttest.runtime.supervisor.listing import collect_tests, for_gpu_runners

    told = any(word.startswith("--disttest-collect-for=") for word in pytest_args)
    options = resolve_options(flags)
    plugin_manager().call("disttest_check_collection", options=options)
    if is_accelerator(options.device) and not told:
        pytest_args = [*pytest_args, *for_gpu_runners(gpus, options.device)]
    with tempfile.TemporaryDirectory(prefix="disttest-plan-") as folder:
        given = filled(flags, Path(folder))
        collection = collect_tests(resolve_targets(targets), given, pytest_args, Path(folder))
    if collection.exit_code not in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED):
        click.echo(collection.output, err=True)
        raise UsageError(
            "some tests could not be collected (see above); fix them, since no shard would run them"
        )
    for remark in collection.remarks:
        warn(remark)
    return collection.tests
