"""Plan the faults of a test from its baseline run. Pure functions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from disttest.errors import UsageError
from disttest.extras.chaos.case import (
    BaselineCall,
    BaselineRank,
    ChaosCase,
    Fault,
    FaultKind,
    baseline_ranks,
    case_of,
)
from disttest.extras.chaos.limits import DELAY_S, GROUP_S, SLACK_S
from disttest.model import FROM_ROOT, TO_ROOT, Frozen, TestCase, TestResult

_Key = tuple[object, ...]


def needing(ranks: Sequence[BaselineRank], fault: Fault) -> tuple[int, ...]:
    """Return the ranks that wait directly for data of the faulty one.

    The source of a broadcast and the sender of a message do not: they may have passed before the fault is noticeable.

    Args:
        ranks: calls of the baseline run.
        fault: the fault. The call itself has been sent if the fault is injected during it.
    """
    victim = next(rank for rank in ranks if rank.rank == fault.rank)
    # Only calls from the fault on matter: earlier ones are complete before it.
    numbers = {_key(call, victim.rank): number for number, call in enumerate(victim.calls, 1)}
    first = fault.call + fault.during
    return tuple(
        rank.rank
        for rank in ranks
        if rank.rank != victim.rank
        and any(
            _waits_for(call, rank.rank, victim.rank) and numbers.get(_key(call, rank.rank), 0) >= first
            for call in rank.calls
        )
    )


def _key(call: BaselineCall, rank: int) -> _Key:
    """Key that matching calls of different ranks share."""
    if call.peer is None:
        return call.group, call.seq
    # Sender and receiver in this order, so that both ends of a message have one key.
    ends = (rank, call.peer) if call.op == "send" else (call.peer, rank)
    return call.group, *ends, call.tag, call.seq


def _waits_for(call: BaselineCall, rank: int, victim: int) -> bool:
    if call.peer is not None:
        return call.op != "send" and call.peer == victim
    if victim not in call.members:
        return False
    # A broadcast or scatter gives data of the root only. In a reduce or gather the root alone waits.
    if call.op in FROM_ROOT:
        return call.root == victim
    return call.op not in TO_ROOT or call.root == rank


class ChaosPlan(Frozen):
    """Plan for the pytest process of a run."""

    cases: dict[str, tuple[ChaosCase, ...]] | None = None
    """Node id of a test -> its faults. None: count the calls of each test that has a world."""


class Wanted(Frozen):
    """Faults that the user selected."""

    kinds: tuple[FaultKind, ...] = tuple(FaultKind)
    during: bool = False
    faults: tuple[Fault, ...] = ()
    """Only these faults; empty: all of the selected kinds."""
    samples: int = 0
    """Number of faults to draw for each test; 0: all."""
    seed: int = 0
    limit_s: float = GROUP_S
    delay_s: float = DELAY_S


class Drawn(Frozen):
    """The faults drawn for one test."""

    test: TestCase
    cases: tuple[ChaosCase, ...]
    of: int
    """Number of possible faults."""


def draw(test: TestCase, baseline: TestResult, wanted: Wanted) -> Drawn:
    """Draw the faults of a test that passed in the baseline.

    Raises:
        UsageError: a fault names a call that the test does not make.
    """
    ranks = baseline_ranks(baseline)
    possible = list(_check(test, ranks, wanted.faults)) if wanted.faults else list(_all(ranks, wanted))
    drawn = possible
    if 0 < wanted.samples < len(possible):
        # A text as a seed does not go through hash(), so PYTHONHASHSEED does not change the draw.
        generator = random.Random(f"{wanted.seed}:{test.nodeid}")  # noqa: S311
        # In their order: kinds take turns in it.
        places = sorted(generator.sample(range(len(possible)), wanted.samples))
        drawn = [possible[place] for place in places]
    cases = tuple(make_case(test, baseline, fault, wanted) for fault in drawn)
    return Drawn(test=test, cases=cases, of=len(possible))


def _all(ranks: Sequence[BaselineRank], wanted: Wanted) -> Iterator[Fault]:
    # Kinds take turns: after some of them the ranks only wait for a time limit, which leaves the processors to worlds
    # that run at the same time.
    for rank in ranks:
        for call in range(1, len(rank.calls) + 1):
            for kind in wanted.kinds:
                yield Fault(kind=kind, rank=rank.rank, call=call, during=wanted.during)


def _check(test: TestCase, ranks: Sequence[BaselineRank], faults: Sequence[Fault]) -> Iterator[Fault]:
    calls = {rank.rank: len(rank.calls) for rank in ranks}
    for fault in faults:
        if fault.rank not in calls:
            raise UsageError(
                f"--fault {fault}: {test.nodeid} has no rank {fault.rank}, its last one is {max(calls)}"
            )
        if not 1 <= fault.call <= calls[fault.rank]:
            raise UsageError(
                f"--fault {fault}: rank {fault.rank} of {test.nodeid} issues {calls[fault.rank]} calls"
            )
        yield fault


def make_case(test: TestCase, baseline: TestResult, fault: Fault, wanted: Wanted) -> ChaosCase:
    """Combine a fault with the data needed to inject and to judge it."""
    counted = case_of(test)
    assert counted is not None
    ranks = baseline_ranks(baseline)
    victim = next(rank for rank in ranks if rank.rank == fault.rank)
    within_s = counted.contract.within_s
    return ChaosCase(
        contract=counted.contract,
        fault=fault,
        struck=victim.calls[fault.call - 1].shown,
        calls=len(victim.calls),
        needing=needing(ranks, fault),
        numbers={str(rank.rank): rank.numbers for rank in ranks if rank.numbers},
        # torch's default of 30 minutes (10 for NCCL) would make each silent fault that long.
        limit_s=wanted.limit_s,
        delay_s=wanted.delay_s,
        timeout_s=5 * baseline.duration_s + 2 * wanted.limit_s + wanted.delay_s + within_s + SLACK_S,
    )
