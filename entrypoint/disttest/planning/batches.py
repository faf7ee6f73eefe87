"""Which tests share a world: the batches of a run.

A test that asks for new processes is a batch of its own. Warm tests of one file and shape share a world, as pytest
users expect of a file; the tests of small files share one with the next files of their suite, since a new world would
cost more than the tests; and a long file is split where that fills idle slots and costs little.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

import msgspec

from disttest.model import ALONE, Batch, Frozen, Isolation, TestCase, WorldKind, WorldShape
from disttest.planning.timings import Timings

START_SHARE = 0.1
"""A piece of a split batch is so long that the start of its world is at most this share of it."""

PIECES_PER_SLOT = 4
"""A batch is split when it is longer than the run's expected time over this number: enough pieces to fill the gaps."""


class _Piece(Frozen):
    tests: tuple[TestCase, ...]
    work_s: float


def build_batches(
    tests: Sequence[TestCase],
    timings: Timings,
    *,
    slots: int,
    cpu_slots: int = 0,
    spare: int = 0,
    failed: Collection[str] = (),
    together: bool = False,
) -> tuple[Batch, ...]:
    """Group the tests that need a world into batches, in the order of the tests (those for the CPU last).

    Args:
        tests: ordinary tests (without a world) are left out, unless they are contained: they are nobody's batch.
        timings: expected durations and world starts.
        slots: how many slots the batches will share; decides how finely long files are split.
        cpu_slots: slots of the CPU for the worlds there, where ``slots`` are GPUs; 0 where all share one kind.
        spare: how many more may be lent to them; files whose tests start ranks of their own are split for these as well.
        failed: node ids that go first (``--failed-first``): their batches are urgent, and they lead them.
        together: tests of one shape share one world, whatever their files.
    """
    owed = [test for test in tests if test.world]
    beside = [test for test in owed if cpu_slots and test.world and test.world.device == "cpu"]
    apart = {test.nodeid for test in beside}
    first = [test for test in owed if test.nodeid not in apart]
    cut = _whole if together else _cut
    pieces = [
        *cut(first, timings, slots, spare),
        *cut(beside, timings, cpu_slots, 0),
        *_contained(tests, timings),
    ]
    return tuple(_batch(number, piece, timings, failed) for number, piece in enumerate(pieces, 1))


def _contained(tests: Sequence[TestCase], timings: Timings) -> Iterable[_Piece]:
    """Ordinary tests that are contained: those of a file share a process (some files one), and run one after another."""
    processes: dict[tuple[str, Isolation], list[TestCase]] = {}
    for test in tests:
        if test.kind is WorldKind.PROCESS:
            file = "" if test.shares_process else test.file
            processes.setdefault((file, test.isolation), []).append(test)
    for (_, isolation), together in processes.items():
        for some in [(test,) for test in together] if isolation is Isolation.FRESH else [together]:
            yield _Piece(tests=tuple(some), work_s=sum(map(timings.expect, some)))


def _whole(tests: Sequence[TestCase], timings: Timings, slots: int, spare: int) -> Iterable[_Piece]:
    """The tests for slots of one kind, all that can share a world in one piece."""
    del slots, spare
    for (_, isolation, _, _), bucket in _buckets(tests).items():
        for some in [[test] for test in bucket] if isolation is Isolation.FRESH else [bucket]:
            yield _Piece(tests=tuple(some), work_s=sum(map(timings.expect, some)))


def _cut(tests: Sequence[TestCase], timings: Timings, slots: int, spare: int) -> Iterable[_Piece]:
    """The tests for slots of one kind, in pieces that are a batch each."""
    expected = {test.nodeid: timings.expect(test) for test in tests}
    total_s = sum(expected[test.nodeid] * _width(test, slots) for test in tests) / max(1, slots)
    for (shape, isolation, _, kind), bucket in _buckets(tests).items():
        start_s = timings.start_s(shape)
        # Ranks that a test starts end with it, so that a world more repeats little: warm ranks stay together instead.
        most = slots + spare if kind is WorldKind.MAIN else slots
        if isolation is Isolation.FRESH:
            yield from (_Piece(tests=(test,), work_s=expected[test.nodeid]) for test in bucket)
            continue
        longest_s = max(start_s / START_SHARE, total_s * slots / max(1, most) / PIECES_PER_SLOT)
        if most < 2 * _width(bucket[0], slots):
            longest_s = math.inf  # one such world at a time: pieces would only start more worlds
        yield from _warm_pieces(bucket, expected, least_s=start_s, longest_s=longest_s)


def rest_of(batch: Batch, nodeids: Sequence[str]) -> Batch:
    """What is left of a batch whose world broke: a batch of its own, expected to take its share of the time."""
    share = len(nodeids) / max(1, len(batch.nodeids))
    return msgspec.structs.replace(
        batch, batch_id=f"{batch.batch_id}+", nodeids=tuple(nodeids), expected_s=batch.expected_s * share
    )


def _width(test: TestCase, slots: int) -> int:
    return min(test.world.size, max(1, slots)) if test.world else 0


def _buckets(
    tests: Iterable[TestCase],
) -> dict[tuple[WorldShape, Isolation, bool, WorldKind], list[TestCase]]:
    """Tests that could share a world: of one shape, and one way to meet their ranks."""
    buckets: dict[tuple[WorldShape, Isolation, bool, WorldKind], list[TestCase]] = {}
    for test in tests:
        if test.world:
            buckets.setdefault((test.world, test.isolation, test.exclusive, test.kind), []).append(test)
    return buckets


def _warm_pieces(
    tests: Iterable[TestCase], expected: dict[str, float], *, least_s: float, longest_s: float
) -> Iterable[_Piece]:
    """Cut tests into pieces: at the borders of files and suites, unless a piece would be shorter than ``least_s``."""
    open_tests: list[TestCase] = []
    open_s = 0.0
    for suite, of_suite in groupby(sorted(tests, key=_place), key=lambda test: test.suite):
        for _, of_file in groupby(of_suite, key=lambda test: test.file):
            file_tests = list(of_file)
            file_s = sum(expected[test.nodeid] for test in file_tests)
            if open_tests and (open_s >= least_s or file_s >= least_s or open_tests[-1].suite != suite):
                yield _Piece(tests=tuple(open_tests), work_s=open_s)
                open_tests, open_s = [], 0.0
            *whole, last = _split(file_tests, expected, file_s, longest_s)
            yield from whole
            open_tests, open_s = [*open_tests, *last.tests], open_s + last.work_s
    if open_tests:
        yield _Piece(tests=tuple(open_tests), work_s=open_s)


def _place(test: TestCase) -> tuple[str, str]:
    """Where a test stands; the sort is stable, so that tests of a file keep their order."""
    return test.suite, test.file


def _split(
    tests: list[TestCase], expected: dict[str, float], work_s: float, longest_s: float
) -> Iterable[_Piece]:
    """Cut a file into runs of tests of about equal time, none longer than need be."""
    count = max(1, math.ceil(work_s / longest_s))
    pieces: list[list[TestCase]] = [[] for _ in range(count)]
    before_s = 0.0
    for test in tests:
        middle_s = before_s + expected[test.nodeid] / 2
        pieces[min(count - 1, int(middle_s / work_s * count)) if work_s else 0].append(test)
        before_s += expected[test.nodeid]
    for piece in filter(None, pieces):
        yield _Piece(tests=tuple(piece), work_s=sum(expected[test.nodeid] for test in piece))


def _batch(number: int, piece: _Piece, timings: Timings, failed: Collection[str]) -> Batch:
    first = piece.tests[0]  # all of a piece are alike in what follows
    shape = first.world or ALONE
    nodeids = [test.nodeid for test in piece.tests]
    nodeids.sort(key=lambda nodeid: nodeid not in failed)
    return Batch(
        batch_id=f"batch-{number}",
        nodeids=tuple(nodeids),
        shape=shape,
        isolation=first.isolation,
        expected_s=timings.start_s(shape) + piece.work_s,
        exclusive=first.exclusive
        or first.kind is WorldKind.PROCESS,  # as in any pytest, nothing runs beside it
        shares=first.kind is not WorldKind.RANKS,
        urgent=nodeids[0] in failed,
    )
