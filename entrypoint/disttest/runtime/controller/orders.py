"""What a process of ours is told that collects by itself: to be a rank in a fresh interpreter, or what worlds are forked from."""

from __future__ import annotations

from pathlib import Path

import msgspec

from disttest.model import Frozen
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.rank.rank_spec import RankSpec


class CollectingOrder(Frozen):
    """What a process that collects by itself is told through its command line: a JSON file."""

    modules: tuple[str, ...]
    """The files to collect; all others are ignored."""
    host: TargetHost
    """The machine as the controller sees it: a rank sees less, and would make other tests of it."""


class InterpreterOrder(CollectingOrder, tag="rank"):
    """Be a rank."""

    spec: RankSpec
    channel_fd: int

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.spec.scratch.parent / f"rank{self.spec.rank}.order.json"


class ParentOrder(CollectingOrder, tag="parent"):
    """Be what worlds are forked from."""

    line_fd: int
    answer: str
    """The file for what it has collected."""


def write_order(order: CollectingOrder, path: Path, ledger: int) -> tuple[str, ...]:
    """Write an order; the arguments by which pytest finds it.

    Args:
        order: what it is told.
        path: the file.
        ledger: the descriptor of the values to hide, as pytest will have it; negative: there are none.
    """
    path.write_bytes(msgspec.json.encode(order, enc_hook=str))
    hidden = (f"--disttest-ledger={ledger}",) if ledger >= 0 else ()
    return (f"--disttest-rank={path}", *hidden)


def read_order(path: Path) -> InterpreterOrder | ParentOrder:
    """The order of a process that collects by itself."""
    return msgspec.json.decode(
        path.read_bytes(), type=InterpreterOrder | ParentOrder, dec_hook=lambda kind, text: kind(text)
    )
