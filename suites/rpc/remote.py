"""Functions that the tests call on other ranks."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed.rpc as rpc

from .agents import worker

counted: Counter[str] = Counter()
"""How often this process was asked, by what was asked."""
gates: defaultdict[str, threading.Event] = defaultdict(threading.Event)


class Unusual(Exception):
    """An exception that cannot be made from its text alone."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


@dataclass
class Parcel:
    """A user's own class with tensors inside."""

    label: str
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


class Account:
    """A user's object that lives on one rank."""

    bank = "the bank"

    def __init__(self, balance: float) -> None:
        self.balance = balance

    def pay_in(self, amount: float) -> float:
        """Change it and return its value."""
        self.balance += amount
        return self.balance

    @staticmethod
    def rate(years: int) -> int:
        """Needs no instance."""
        return 3 * years

    @classmethod
    def name_of_bank(cls, suffix: str = "") -> str:
        """Needs the class."""
        return cls.bank + suffix


def my_name() -> str:
    """Which agent runs this."""
    return rpc.get_worker_info().name


def signed(tensor: torch.Tensor, *, weight: float = 1.0) -> tuple[str, torch.Tensor]:
    """The name of this agent, and the weighted tensor."""
    return my_name(), tensor * weight


def same(value: Any) -> Any:
    """Sent back as it came."""
    return value


def fill(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """Change the argument in place."""
    return tensor.fill_(value)


def count(what: str) -> int:
    """How often this was asked here, this time included."""
    counted[what] += 1
    return counted[what]


def around(hops: int, path: list[str]) -> list[str]:
    """Call on to the next rank until no hops are left; the names on the way."""
    here = rpc.get_worker_info()
    path = [*path, here.name]
    if hops == 0:
        return path
    size = len(rpc.api._get_current_rpc_agent().get_worker_infos())
    return rpc.rpc_sync(worker((here.id + 1) % size), around, args=(hops - 1, path))


@rpc.functions.async_execution
def add_elsewhere(rank: int, left: torch.Tensor, right: torch.Tensor) -> Any:
    """Returns a future: no thread of this agent waits for the other rank."""
    there = rpc.rpc_async(worker(rank), torch.add, args=(left, right))
    return there.then(lambda done: done.wait() + 1)


@rpc.functions.async_execution
def not_a_future() -> int:
    """Breaks the promise of ``async_execution``."""
    return 1


def fail(kind: type[BaseException], *arguments: Any) -> None:
    """Raise."""
    raise kind(*arguments)


def fail_further(rank: int, text: str) -> None:
    """Have another rank raise."""
    rpc.rpc_sync(worker(rank), fail, args=(ValueError, text))


def not_picklable() -> Any:
    """A result that cannot travel."""
    return threading.Lock()


def wait_for(gate: str, limit_s: float = 30.0) -> str:
    """Return when a test opens the gate."""
    gates[gate].wait(limit_s)
    return gate


def open_gate(gate: str) -> None:
    """Release all waiting threads."""
    gates[gate].set()


def read(rref: Any) -> Any:
    """Return the value of a reference."""
    return rref.to_here()


def read_local(rref: Any) -> Any:
    """Return the value of a reference, on its owner."""
    return rref.local_value()


def keep(name: str, rref: Any) -> None:
    """Hold a reference until told to drop it."""
    kept[name] = rref


def drop(name: str) -> None:
    """Let go of a reference."""
    kept.pop(name, None)


def hand_back(rref: Any) -> Any:
    """A reference that was given, returned."""
    return rref


def make_reference(value: Any) -> Any:
    """A reference to something that this rank owns."""
    return rpc.RRef(value)


kept: dict[str, Any] = {}
