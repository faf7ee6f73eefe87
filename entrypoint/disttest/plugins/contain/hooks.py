"""Hooks of isolated tests, which run in separate processes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl
from disttest.model import TestCase, TestResult, WorldKind
from disttest.options.option import Option, of_every_run
from disttest.options.values import SWITCH

if TYPE_CHECKING:
    import pytest

    from disttest.options.run import RunOptions
    from disttest.runtime.messages.protocol import WorldOrder
    from disttest.runtime.rank.rank import ProcessMain
    from disttest.runtime.rank.rank_spec import RankSpec
    from disttest.runtime.world.judged_attempt import JudgedAttempt
    from disttest.runtime.world.world_supervisor import WorldSupervisor


ISOLATE_FILES = of_every_run(
    "isolate-files",
    SWITCH,
    "Run tests without a world in a process for each file, under a time limit; spawned processes start with torch imported.",
    default=False,
    otherwise="false",
    repeated=True,
    common=True,
    formerly=(("contain", "--isolate-files"),),
)
FAST_SPAWN = of_every_run(
    "fast-spawn",
    SWITCH,
    "With isolate-files: fork what tests spawn from a process with torch imported, instead of starting interpreters.",
    default=True,
    no_flag=True,
)

OPTIONS = (ISOLATE_FILES, FAST_SPAWN)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Return ``--isolate-files`` and its setting."""
    return OPTIONS


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the parts of processes and their supervisors."""
    del config
    from disttest.plugins.contain import isolated  # noqa: F401


@hookimpl
def disttest_place_tests(
    pairs: list[tuple[pytest.Item, TestCase]], config: pytest.Config, options: RunOptions
) -> Sequence[str]:
    """Move tests into a process for each file, unless something prevents it."""
    if not ISOLATE_FILES.of(options):
        return ()
    from disttest.plugins.contain.placing import place_isolated

    return place_isolated(pairs, config, options)


@hookimpl
def disttest_ordinary_tests_begin(options: RunOptions) -> None:
    """Enable fast spawn in the pytest process, too."""
    if ISOLATE_FILES.of(options) and FAST_SPAWN.of(options):
        from disttest.plugins.contain.fast_spawn import use_fast_spawn

        use_fast_spawn()


@hookimpl
def disttest_make_world(order: WorldOrder) -> type[WorldSupervisor] | None:
    """Return the supervisor of isolated tests."""
    if order.tests[0].kind is not WorldKind.PROCESS:
        return None
    from disttest.plugins.contain.isolated import IsolatedWorld

    return IsolatedWorld


@hookimpl
def disttest_process_main(spec: RankSpec) -> ProcessMain | None:
    """Return the main function of an isolated process."""
    if spec.kind is not WorldKind.PROCESS:
        return None
    from disttest.plugins.contain.isolated import serve_isolated

    return serve_isolated


@hookimpl(wrapper=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> Generator[None, TestResult, TestResult]:
    """Name the processes of the test that died."""
    result = yield
    if attempt.test.kind is not WorldKind.PROCESS:
        return result
    from disttest.plugins.contain.isolated import with_deaths

    return with_deaths(result, attempt.ranks[0])
