"""The hooks of recordings."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl
from disttest.model import RecordRule
from disttest.options.option import rows_of
from disttest.options.values import WHOLE, Type
from disttest.plugin_manager import plugin_manager

if TYPE_CHECKING:
    import click
    import pytest

    from disttest.model import TestResult
    from disttest.options.option import Option
    from disttest.runtime.rank.rank_test import Rank
    from disttest.runtime.world.judged_attempt import JudgedAttempt


_OPTIONS = (
    rows_of("replay")("rank", Type(form="K", parse=WHOLE.parse), "The rank.", default=0, otherwise="0"),
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Those of ``disttest replay``."""
    return _OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """``disttest replay``."""
    from disttest.extras.replay.command import replay

    group.add_command(replay)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The recording that the command replays."""
    parser.getgroup("disttest").addoption(
        "--disttest-replay", dest="disttest_replay", help="(internal) given by the disttest command"
    )


@hookimpl
def disttest_leaves_tests(config: pytest.Config) -> bool | None:
    """The rank of a recording is no run."""
    return bool(config.getoption("disttest_replay")) or None


@hookimpl
def disttest_run_session(session: pytest.Session) -> bool | None:
    """Be the rank of a recording."""
    told = session.config.getoption("disttest_replay")
    if not told:
        return None
    from disttest.extras.replay.replaying import replay_session

    replay_session(session, told)
    return True


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the recorder, which imports no torch."""
    del config
    from disttest.extras.replay import in_rank, in_world  # noqa: F401


@hookimpl
def disttest_rank_configure(rank: Rank) -> None:
    """Start the recorder, if the run wants one."""
    if rank.settings.record is not RecordRule.OFF and not (rank.spans_nodes or rank.is_launched):
        from disttest.extras.replay.in_rank import RankRecording

        plugin_manager().add(RankRecording(rank.spec), "disttest.replay.in_rank")


@hookimpl(wrapper=True, tryfirst=True)
def disttest_judge_attempt(attempt: JudgedAttempt) -> Generator[None, TestResult, TestResult]:
    """Decide whether the recordings stay, when it is known how the test ended."""
    result = yield
    if attempt.settings.record is RecordRule.OFF:
        return result
    from disttest.extras.replay.in_world import keep_recordings

    return keep_recordings(attempt, result, attempt.settings.record)
