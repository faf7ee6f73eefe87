"""Forks the ranks of a main process and passes them to their supervisor."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from disttest.host.process import die_with_parent, fork_child, leave
from disttest.plugin_manager import plugin_manager
from disttest.plugins.launching_classes.account import Account
from disttest.plugins.launching_classes.ranks import account_for, set_up_child
from disttest.plugins.launching_classes.team import Rank, Team
from disttest.runtime.messages.phases import PhaseCell
from disttest.runtime.messages.protocol import Channel, RankReady, TestDone
from disttest.runtime.rank import flight
from disttest.runtime.rank.child import close_in_forks, with_high_descriptor
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.rank.waits import leave_waits, watch_waits
from disttest.runtime.world.evidence import EvidenceSource
from disttest.runtime.world.rank_handles import RankProcessHandle

RankMain = Callable[[int, Channel, Account, Path], TestDone]
"""Main function of a rank, called with number, channel, report and path of stacks; returns the last message."""


class RankStarter:
    """Starts the ranks of one main process."""

    def __init__(self, spec: RankSpec, channel: Channel, config: pytest.Config) -> None:
        """Create the starter of a main process.

        Args:
            spec: description of the main process.
            channel: channel to its world, which no rank may hold.
            config: pytest's configuration.
        """
        self._spec, self._channel, self._config = spec, channel, config
        self._starts = 0

    def fork(self, team: Team, rank: int, log_name: str, main: RankMain) -> None:
        """Fork a rank of the team."""
        ours, theirs = Channel.pair()
        # A rank that held another rank's channel would keep it open after that one's death, which would go
        # unnoticed.
        foreign = [ours, self._channel, *(handle.channel for handle in team.supervisor.handles)]
        self._starts += 1
        stacks = self._spec.scratch / f"rank{rank}-{self._starts}.stacks"
        questions = stacks.with_suffix(".ask")
        # Asked before the fork: the rank compares it with its parent to see whether that has ended already.
        spec, config, parent = self._spec, self._config, os.getpid()
        # Opened here, because logs of masked runs are memory that this process holds.
        log = team.supervisor.logs.open(log_name)
        held = team.held
        held_at = held.path if held else None

        def be_rank() -> None:
            # First: the main process may be killed during any of the following steps.
            die_with_parent(parent)
            for channel in foreign:
                channel.close()
            # Tests close and replace low descriptors, and a fork of a rank must not report for it.
            mine = with_high_descriptor(theirs)
            close_in_forks(mine)
            set_up_child(config, log, stacks, spec.threads, team.captured)
            flight.answer_questions(questions, rank)
            hold = PhaseCell(held_at, rank).hold if held_at else None
            # Before the test can reach `breakpoint()`, which plugins replace here.
            post_mortem = plugin_manager().call(
                "disttest_started_rank", rank=rank, spec=spec, config=config, hold=hold
            )
            watch_waits(team.watches, rank)
            flight.note_start()
            own_account = account_for(mine, post_mortem)
            mine.send(RankReady())
            done = main(rank, mine, own_account, stacks)
            # Before the last message, while peers may still connect to this rank: after it the supervisor
            # expects the end.
            leave_waits()
            # `leave` ends with os._exit, so exit handlers do not save anything.
            plugin_manager().call("disttest_process_saves")
            mine.send(done)
            leave(done.exit_code or 0)

        # `os.killpg(0, …)` in a test then reaches this rank and its children only.
        child = fork_child(be_rank, new_group=True)
        # Otherwise the end of the rank would not close its channel.
        theirs.close()
        team.ranks.append(Rank(rank, child))
        handle = RankProcessHandle(
            rank=rank,
            channel=ours,
            child=child,
            evidence=EvidenceSource(child, stacks, questions),
            log=log,
            held=lambda: held is not None and held.is_held(rank),
        )
        team.supervisor.add(handle)
