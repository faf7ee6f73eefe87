"""Grouping of tests into batches, which share a world.

A test that asks for new processes is a separate batch. Warm tests of one file and shape share a world. The tests of
small files share one with the next files of their suite, because a new world would cost more than the tests. A long
file is split if that fills idle slots at little cost.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

import msgspec

from disttest.model import ALONE, Batch, Frozen, Isolation, TestCase, WorldKind, WorldShape
from disttest.planning.timings import Timings

START_SHARE = 0.1
"""Largest share of the start of a world in the duration of a split piece."""

PIECES_PER_SLOT = 4
"""A batch longer than the run's expected time over this number is split: enough pieces to fill the gaps."""


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
    """Group the tests that need a world into batches, in the order of the tests, those on the CPU last.

    Args:
        tests: ordinary tests (without a world) are left out, unless they are isolated.
        timings: expected durations and world starts.
        slots: number of slots that the batches share; decides how finely long files are split.
        cpu_slots: number of CPU slots for worlds there, if ``slots`` are GPUs; 0 if all share one kind.
        spare: number of slots that may be borrowed in addition; files whose tests start their own ranks are split
            for these as well.
        failed: node ids that run first (``--failed-first``): their batches are urgent, and they lead them.
        together: whether all tests of one shape share one world, regardless of their files.
    """
    owed = [test for test in tests if test.world]
    parallel = [test for test in owed if cpu_slots and test.world and test.world.device == "cpu"]
    parallel_ids = {test.nodeid for test in parallel}
    first = [test for test in owed if test.nodeid not in parallel_ids]
    cut = _whole if together else _cut
    pieces = [
        *cut(first, timings, slots, spare),
        *cut(parallel, timings, cpu_slots, 0),
        *_isolated(tests, timings),
    ]
    return tuple(_batch(number, piece, timings, failed) for number, piece in enumerate(pieces, 1))


def _isolated(tests: Sequence[TestCase], timings: Timings) -> Iterable[_Piece]:
    """Group isolated ordinary tests."""
    # Those of a file share a process, and some files share one; they run in sequence.
    processes: dict[tuple[str, Isolation, bool], list[TestCase]] = {}
    for test in tests:
        if test.kind is WorldKind.PROCESS:
            file = "" if test.shares_process else test.file
            processes.setdefault((file, test.isolation, test.exclusive), []).append(test)
    for (_, isolation, _), together in processes.items():
        for some in [(test,) for test in together] if isolation is Isolation.FRESH else [together]:
            yield _Piece(tests=tuple(some), work_s=sum(map(timings.expect, some)))


def _whole(tests: Sequence[TestCase], timings: Timings, slots: int, spare: int) -> Iterable[_Piece]:
    """Group all tests that can share a world into one piece."""
    del slots, spare
    for (_, isolation, _, _), bucket in _buckets(tests).items():
        for some in [[test] for test in bucket] if isolation is Isolation.FRESH else [bucket]:
            yield _Piece(tests=tuple(some), work_s=sum(map(timings.expect, some)))


def _cut(tests: Sequence[TestCase], timings: Timings, slots: int, spare: int) -> Iterable[_Piece]:
    """Cut the tests for slots of one kind into pieces, one for each batch."""
    expected = {test.nodeid: timings.expect(test) for test in tests}
    # The time of the run if no slot were ever idle.
    total_s = sum(expected[test.nodeid] * _width(test, slots) for test in tests) / max(1, slots)
    for (shape, isolation, _, kind), bucket in _buckets(tests).items():
        start_s = timings.start_s(shape)
        # A test's own ranks end with it, so one more world repeats little work. Warm ranks stay together instead.
        most = slots + spare if kind is WorldKind.MAIN else slots
        if isolation is Isolation.FRESH:
            yield from (_Piece(tests=(test,), work_s=expected[test.nodeid]) for test in bucket)
            continue
        # A long piece makes the start of its world cheap. Short pieces fill gaps, but only while starts stay
        # cheap.
        longest_s = max(start_s / START_SHARE, total_s * slots / max(1, most) / PIECES_PER_SLOT)
        if most < 2 * _width(bucket[0], slots):
            longest_s = math.inf  # only one such world runs at a time, so pieces would only add starts
        yield from _warm_pieces(bucket, expected, least_s=start_s, longest_s=longest_s)


def rest_of(batch: Batch, nodeids: Sequence[str]) -> Batch:
    """Return the rest of a batch whose world broke, as a batch with its share of the expected time."""
    share = len(nodeids) / max(1, len(batch.nodeids))
    return msgspec.structs.replace(
        batch, batch_id=f"{batch.batch_id}+", nodeids=tuple(nodeids), expected_s=batch.expected_s * share
    )


def _width(test: TestCase, slots: int) -> int:
    return min(test.world.size, max(1, slots)) if test.world else 0


def _buckets(
    tests: Iterable[TestCase],
) -> dict[tuple[WorldShape, Isolation, bool, WorldKind], list[TestCase]]:
    """Group tests that could share a world: same shape, isolation, exclusiveness and kind."""
    buckets: dict[tuple[WorldShape, Isolation, bool, WorldKind], list[TestCase]] = {}
    for test in tests:
        if test.world:
            buckets.setdefault((test.world, test.isolation, test.exclusive, test.kind), []).append(test)
    return buckets


def _warm_pieces(
    tests: Iterable[TestCase], expected: dict[str, float], *, least_s: float, longest_s: float
) -> Iterable[_Piece]:
    """Cut tests into pieces at the borders of files and suites, unless a piece would be shorter than ``least_s``."""
    open_tests: list[TestCase] = []
    open_s = 0.0
    for suite, of_suite in groupby(sorted(tests, key=_place), key=lambda test: test.suite):
        for _, of_file in groupby(of_suite, key=lambda test: test.file):
            file_tests = list(of_file)
            file_s = sum(expected[test.nodeid] for test in file_tests)
            # A world whose tests take less time than its start takes the next file, too.
            if open_tests and (open_s >= least_s or file_s >= least_s or open_tests[-1].suite != suite):
                yield _Piece(tests=tuple(open_tests), work_s=open_s)
                open_tests, open_s = [], 0.0
            *whole, last = _split(file_tests, expected, file_s, longest_s)
            yield from whole
            open_tests, open_s = [*open_tests, *last.tests], open_s + last.work_s
    if open_tests:
        yield _Piece(tests=tuple(open_tests), work_s=open_s)


def _place(test: TestCase) -> tuple[str, str]:
    """Return the sort key of a test. The sort is stable, so tests of a file keep their order."""
    return test.suite, test.file


def _split(
    tests: list[TestCase], expected: dict[str, float], work_s: float, longest_s: float
) -> Iterable[_Piece]:
    """Cut a file into sequences of tests of about equal time, each as long as allowed."""
    count = max(1, math.ceil(work_s / longest_s))
    pieces: list[list[TestCase]] = [[] for _ in range(count)]
    before_s = 0.0
    for test in tests:
        # The middle of a test decides: with its start, a long last test would make its piece too long.
        middle_s = before_s + expected[test.nodeid] / 2
        pieces[min(count - 1, int(middle_s / work_s * count)) if work_s else 0].append(test)
        before_s += expected[test.nodeid]
    for piece in filter(None, pieces):
        yield _Piece(tests=tuple(piece), work_s=sum(expected[test.nodeid] for test in piece))


def _batch(number: int, piece: _Piece, timings: Timings, failed: Collection[str]) -> Batch:
    first = piece.tests[0]  # all tests of a piece have the same properties below
    shape = first.world or ALONE
    nodeids = [test.nodeid for test in piece.tests]
    # The sort is stable: apart from failed tests, the order of the files stays.
    nodeids.sort(key=lambda nodeid: nodeid not in failed)
    return Batch(
        batch_id=f"batch-{number}",
        nodeids=tuple(nodeids),
        shape=shape,
        isolation=first.isolation,
        expected_s=timings.start_s(shape) + piece.work_s,
        exclusive=first.exclusive,
        shares=first.kind is not WorldKind.RANKS,
        urgent=nodeids[0] in failed,
    )
