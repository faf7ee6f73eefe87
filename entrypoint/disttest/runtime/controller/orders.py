"""Orders for disttest processes that collect tests: ranks in fresh interpreters, and processes that fork worlds."""

from __future__ import annotations

from pathlib import Path

import msgspec

from disttest.model import Frozen
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.rank.rank_spec import RankSpec


class CollectingOrder(Frozen):
    """Order of a process that collects, in a JSON file named on its command line."""

    modules: tuple[str, ...]
    """The files to collect; all others are ignored."""
    host: TargetHost
    """The machine as the controller sees it. A rank sees less of it and would create other tests."""


class InterpreterOrder(CollectingOrder, tag="rank"):
    """Order to become a rank."""

    spec: RankSpec
    channel_fd: int

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.spec.scratch.parent / f"rank{self.spec.rank}.order.json"


class ForkSourceOrder(CollectingOrder, tag="parent"):
    """Order to become a process from which worlds are forked."""

    line_fd: int
    answer: str
    """File for the list of collected tests."""


def write_order(order: CollectingOrder, path: Path, ledger: int) -> tuple[str, ...]:
    """Write an order; return the pytest arguments that refer to it.

    Args:
        order: the order.
        path: the file to write.
        ledger: descriptor of the values to mask in the new process; negative if there are none.
    """
    path.write_bytes(msgspec.json.encode(order, enc_hook=str))
    hidden = (f"--disttest-ledger={ledger}",) if ledger >= 0 else ()
    return (f"--disttest-rank={path}", *hidden)


def read_order(path: Path) -> InterpreterOrder | ForkSourceOrder:
    """Read the order of a process that collects."""
    return msgspec.json.decode(
        path.read_bytes(), type=InterpreterOrder | ForkSourceOrder, dec_hook=lambda kind, text: kind(text)
    )
