"""Ranks that only pretend: they write to a board as real ones do."""

from __future__ import annotations

import itertools
import time
import weakref

from disttest.observe import Call, Group, Site, Wait, WaitKind
from disttest.plugins.deadlock.board_tool import BoardTool
from disttest.plugins.deadlock.proof import Situation, find_deadlock
from disttest.plugins.deadlock.snapshot import read_slot
from disttest.plugins.deadlock.watch import WaitBoard

NOW_S, LIMIT_S = 10.0, 300.0
NOWHERE = Site(None, 0)


def group_of(*ranks, name="0", description="default"):
    return Group(name=name, description=description, ranks=ranks, backend="gloo", timeout_s=1800.0)


class Actor:
    """One rank; what it issues is numbered as by the layer."""

    def __init__(self, board, rank):
        self.rank = rank
        self.tool = BoardTool(board.path, rank)
        self._numbers = {}
        self._calls = itertools.count(1)

    def call(
        self,
        op,
        group,
        *,
        peer=None,
        tag=0,
        root=None,
        by_cpp=False,
        is_async=False,
        thread=1,
        inputs=(),
        outputs=(),
        site=NOWHERE,
        behind=None,
    ):
        key = (group.name, op, peer, tag) if peer is not None else group.name
        seq = self._numbers[key] = self._numbers.get(key, 0) + 1
        call = Call(
            n=next(self._calls),
            op=op,
            group=group,
            seq=seq,
            peer=peer,
            tag=tag,
            root=root,
            reduce_op="",
            is_async=is_async,
            timeout_s=1800.0,
            inputs=inputs,
            outputs=outputs,
            site=site,
            thread=thread,
            by_cpp=by_cpp,
            in_backward=by_cpp,
            behind=behind,
        )
        self.tool.on_issue(call)
        return call

    def wait(
        self,
        call=None,
        *,
        kind=WaitKind.WORK,
        keys=(),
        ranks=(),
        calls=(),
        timeout_s=1800.0,
        thread=1,
        is_public=False,
        group_name="",
    ):
        wait = Wait(
            n=0,
            kind=kind,
            call=call,
            keys=keys,
            timeout_s=timeout_s,
            site=NOWHERE,
            thread=thread,
            ranks=ranks,
            calls=calls,
            is_public=is_public,
            group_name=group_name,
        )
        self.tool.on_wait(wait)
        return wait

    def do(self, op, group, *, thread=1, **more):
        """Issue it and wait for it."""
        return self.wait(self.call(op, group, thread=thread, **more), thread=thread)

    def queue(self, *calls, thread=1):
        """Wait for a GPU that waits for these."""
        return self.wait(kind=WaitKind.DEVICE, calls=calls, thread=thread)

    def done(self, wait):
        """It has come back."""
        self.tool.on_done(wait, None)


class Stage:
    """A world of such ranks."""

    def __init__(self, size):
        self.board = WaitBoard(size)
        weakref.finalize(self, self.board.close)  # a test of many examples has as many
        self.began_s = time.monotonic()
        self.ranks = [Actor(self.board, rank) for rank in range(size)]

    def snapshot(self, rank):
        return read_slot(self.board.slot(rank))

    def situation(self, over=(), dead=(), limit_s=LIMIT_S):
        found = {actor.rank: self.snapshot(actor.rank) for actor in self.ranks}
        gone = {*over, *dead}
        return Situation(
            ranks={rank: slot for rank, slot in found.items() if rank not in gone},
            over={rank: slot for rank, slot in found.items() if rank in gone},
            now_s=self.began_s + NOW_S,
            began_s=self.began_s,
            deadline_s=self.began_s + limit_s,
            dead=frozenset(dead),
        )

    def judge(self, over=(), dead=(), limit_s=LIMIT_S):
        return find_deadlock(self.situation(over, dead, limit_s))
