"""What ``disttest run`` takes from a plan, from earlier timings, and the floors under what it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disttest.cli.merge import read_plan, read_text
from disttest.errors import UsageError
from disttest.model import Frozen
from disttest.planning.shard_plan import Grant, Plan, check_revision, find_shard
from disttest.results.floors import Floors, make_floors

UNTIL_FAIL = "100"
"""How often each test is repeated at most with ``--until-fail`` alone."""


class RunSelection(Frozen):
    """The options, checked."""

    plan_file: Path | None
    plan: Plan | None
    shard: int
    timings: tuple[Path, ...]
    failed_first: bool
    last_failed: bool
    until_fail: bool
    floors: Floors

    @property
    def is_empty_shard(self) -> bool:
        """Whether the plan has nothing for this shard: then nothing to run is a success."""
        return self.plan is not None and find_shard(self.plan, self.shard) is None

    @property
    def grant(self) -> Grant | None:
        """The nodes of a scheduler that this shard asks for; None where it runs on this machine."""
        shard = find_shard(self.plan, self.shard) if self.plan is not None else None
        return shard.grant if shard else None

    def with_repeats(self, flags: dict[str, str | None]) -> dict[str, str | None]:
        """The flags of the run, which repeats each test if it is to go on until one fails."""
        return {**flags, "repeat": flags.get("repeat") or UNTIL_FAIL} if self.until_fail else flags

    def pytest_arguments(self) -> list[str]:
        """The same for the plugin."""
        arguments = [f"--disttest-timings={path.absolute()}" for path in self.timings]
        if self.failed_first:
            arguments.append("--disttest-failed-first")
        if self.until_fail:
            arguments.append("-x")
        if self.plan_file is not None:
            arguments += [f"--disttest-plan={self.plan_file.absolute()}", f"--disttest-shard={self.shard}"]
        return arguments


def take_selection(given: dict[str, Any]) -> RunSelection:
    """Take the options out of what click gave, and check them.

    Raises:
        UsageError: a file cannot be read, or the options contradict each other or the plan.
    """
    plan_file, shard, expect = given.pop("plan"), given.pop("shard"), given.pop("expect")
    revision, stale = given.pop("revision"), given.pop("stale_plan")
    if (plan_file is None) != (shard is None):
        raise UsageError("--plan FILE and --shard K go together")
    plan = read_plan(plan_file)
    if plan is not None:
        find_shard(plan, shard)
        if not stale:
            check_revision(plan, revision)
    floors = make_floors(
        min_tests=given.pop("min_tests"),
        min_worlds=given.pop("min_worlds"),
        max_skip_ratio=given.pop("max_skip_ratio"),
        expect=read_text(expect, "--expect") if expect else "",
        expect_file=str(expect or ""),
        strict=given.pop("strict"),
    )
    return RunSelection(
        plan_file=plan_file,
        plan=plan,
        shard=0 if shard is None else shard,
        timings=given.pop("timings"),
        failed_first=given.pop("failed_first"),
        last_failed=given.pop("last_failed"),
        until_fail=given.pop("until_fail"),
        floors=floors,
    )
