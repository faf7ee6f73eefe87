"""``disttest merge``: one set of reports from the results of many shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import disttest
from disttest.errors import ExitCode, UsageError
from disttest.planning.plan import Plan, decode_plan
from disttest.results.directory import claim
from disttest.results.floors import check_floors, make_floors
from disttest.results.fold import RunResult
from disttest.results.merge import merge
from disttest.results.shards import find_plan

Write = Callable[[RunResult, Path], Any]
"""Writes all reports of a run into its results directory."""


def merge_command(write_reports: Write, leave: Callable[[int], Any]) -> click.Command:
    """The command, around a way to write reports and a way to end with an exit code."""

    @click.command(name="merge")
    @click.argument("directories", nargs=-1, required=True, type=Path, metavar="DIR…")
    @click.option("--plan", "plan_file", type=Path, help="The plan (default: the plan.json in a DIR).")
    @click.option(
        "--shards", type=int, default=0, metavar="N", help="Without a plan: how many there must be."
    )
    @click.option("--reruns", is_flag=True, help="Two results of one shard are a run and its re-run.")
    @click.option("--results", type=Path, default=Path("merged"), help="Where the merged results go.")
    @click.option("--min-tests", type=int, default=0, metavar="N", help="Fail if fewer tests ran.")
    @click.option(
        "--max-skip-ratio", type=float, default=1.0, metavar="0…1", help="Fail if more were skipped."
    )
    @click.option(
        "--expect", type=Path, metavar="FILE", help="Fail if a test named in this file did not run."
    )
    def merge_(directories: tuple[Path, ...], plan_file: Path | None, **given: Any) -> None:
        """Join the results of shards (below the directories) into one."""
        if given["shards"] < 0:
            raise UsageError(f"--shards must be at least 1, not {given['shards']}")
        expect: Path | None = given["expect"]
        floors = make_floors(
            min_tests=given["min_tests"],
            max_skip_ratio=given["max_skip_ratio"],
            expect=read_text(expect, "--expect") if expect else "",
            expect_file=str(expect or ""),
        )
        plan = read_plan(plan_file or find_plan(directories))
        into = claim(given["results"])
        run = merge(
            directories,
            into,
            plan=plan,
            expected_shards=given["shards"],
            reruns=given["reruns"],
            disttest=disttest.__version__,
        )
        write_reports(run, into)
        broken = check_floors(run, floors)
        for message in broken:
            click.echo(f"disttest: {message}", err=True)
        click.echo(f"disttest: {render_merged(run)}; reports in {given['results']}")
        leave(run.exit_code or (ExitCode.FAILED if broken else ExitCode.PASSED))

    return merge_


def read_plan(path: Path | None) -> Plan | None:
    """The plan in a file; None without one.

    Raises:
        UsageError: the file can not be read, or is no plan.
    """
    return decode_plan(read_text(path, "the plan").encode(), str(path)) if path else None


def read_text(path: Path, what: str) -> str:
    """The text of a file.

    Raises:
        UsageError: it can not be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what} can not be read from {path}: {error}") from error


def render_merged(run: RunResult) -> str:
    """One line: how many shards, and how many tests came to what."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in run.counts().items() if count)
    return f"{len(run.shards)} shards, {counts or 'no tests'}"
