"""Hooks of recordings."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from disttest.errors import UsageError
from disttest.hookspecs import hookimpl
from disttest.options.option import Option, of_every_run, rows_of
from disttest.options.values import WHOLE, Type, member_of
from disttest.plugin_manager import plugin_manager

if TYPE_CHECKING:
    import click
    import pytest

    from disttest.cli.run_request import RunRequest
    from disttest.model import TestCase, TestResult, WorldKind, WorldShape
    from disttest.options.run import RunOptions
    from disttest.results.repeat import Run
    from disttest.runtime.rank.rank_test import Rank
    from disttest.runtime.world.judged_attempt import JudgedAttempt

NAME = "replay"


class RecordRule(StrEnum):
    """Tests whose recordings are kept for ``disttest replay``."""

    OFF = "off"
    FAILURES = "failures"
    ALL = "all"


RECORD = of_every_run(
    "record",
    member_of(RecordRule),
    "Record the data that each rank receives, for disttest replay: of all tests, or of failures and hangs only (failures).",
    default=RecordRule.OFF,
    repeated=True,
)

OPTIONS = (
    RECORD,
    rows_of("replay")("rank", Type(form="K", parse=WHOLE.parse), "Rank to replay.", default=0, otherwise="0"),
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Option ``--record``, and the options of ``disttest replay``."""
    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest replay``."""
    from disttest.extras.replay.command import replay

    group.add_command(replay)


@hookimpl(trylast=True)
def disttest_prepare_run(request: RunRequest) -> RunRequest | None:
    """Refuse ``--record`` with masked values, and switch it off on nodes, where a recording would be out of reach."""
    if RECORD.of(request.options) is RecordRule.OFF:
        return None
    if secret := ", ".join(f"--{name}" for name in request.options.secret_options):
        raise UsageError(f"--record cannot hide the values of {secret}; leave one of them out")
    if request.place is None:
        return None
    from disttest.cli.words import warn

    # Not an error: the option may come from the project's settings.
    warn(f"ranks on nodes are not recorded: --record has no effect with {request.place.option}")
    return request.with_option(RECORD, str(RecordRule.OFF))


@hookimpl
def disttest_further_commands(test: TestCase, result: TestResult, run: Run) -> Mapping[str, str]:
    """Add the command that replays one of its ranks."""
    from disttest.extras.replay.recorded import replay_command

    command = replay_command(test, result, run)
    return {"replay": command} if command else {}


@hookimpl
def disttest_needs_new_ranks(world: WorldShape | None, kind: WorldKind, options: RunOptions) -> str | None:
    """Require new ranks: a recording has to include the fixtures and groups of earlier tests."""
    if RECORD.of(options) is RecordRule.OFF:
        return None
    from disttest.extras.replay.recorded import why_unrecorded
    from disttest.model import WorldKind

    by_class = kind in (WorldKind.MAIN, WorldKind.THREADS)
    return "ranks are recorded" if by_class or not why_unrecorded(world, kind, options) else None


@hookimpl
def disttest_notes_on_tests(tests: Sequence[TestCase], options: RunOptions) -> Sequence[str]:
    """Note the tests that are not recorded."""
    from disttest.extras.replay.recorded import unrecorded

    return unrecorded(tests, options)


@hookimpl
def disttest_leaves_tests(config: pytest.Config) -> bool | None:
    """Leave the tests to this plugin in the process of ``disttest replay``."""
    from disttest.runtime.controller.orders import plugin_work

    return plugin_work(config, NAME) is not None or None


@hookimpl
def disttest_run_session(session: pytest.Session) -> bool | None:
    """Run the test of the recording in place of the session."""
    from disttest.runtime.controller.orders import from_data, plugin_work

    work = plugin_work(session.config, NAME)
    if work is None:
        return None
    from disttest.extras.replay.replay_verdict import RecordedOutcome
    from disttest.extras.replay.replaying import replay_session

    replay_session(session, from_data(work, RecordedOutcome))
    return True


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the recorder, which does not import torch."""
    del config
    from disttest.extras.replay import in_rank, recorded  # noqa: F401


@hookimpl
def disttest_rank_configure(rank: Rank) -> None:
    """Start the recorder if the run wants one."""
    if RECORD.of(rank.settings) is not RecordRule.OFF and not (rank.spans_nodes or rank.is_launched):
        from disttest.extras.replay.in_rank import RankRecording

        plugin_manager().add(RankRecording(rank.spec), "disttest.replay.in_rank")


# Outermost: findings of other plugins decide whether the recording is kept, too.
@hookimpl(wrapper=True, tryfirst=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> Generator[None, TestResult, TestResult]:
    """Decide whether to keep the recordings, once the outcome of the test is known."""
    result = yield
    rule = RECORD.of(attempt.settings)
    if rule is RecordRule.OFF:
        return result
    from disttest.extras.replay.recorded import keep_recordings

    return keep_recordings(attempt, result, rule)
