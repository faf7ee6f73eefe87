"""Expected durations of tests, learned from past runs. Pure; other modules read the files.

The table is keyed by hardware, world size, backend and test, because each of them changes durations. An answer is
the 85th percentile of the last runs: a plan based on the median is late every other time. Only attempts that did
not fail count, because a failing test may end immediately or at its deadline.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable

from disttest.model import Frozen, Hardware, TestCase, WorldShape, parts_of

WINDOW = 20
"""Number of the most recent runs of a test that count."""

PERCENTILE = 0.85

UNKNOWN_S = 1.0
"""Expected duration of a test if nothing is known. Only ratios matter then."""

START_S = {"cpu": 0.3, "cuda": 3.0}
"""Expected start of a world by device type, until a journal has measured it."""


class Sample(Frozen):
    """One observation of a test. ``size`` and ``backend`` are None if the source does not contain them (JUnit)."""

    test: str
    """Node id, or ``classname::name`` from a JUnit file."""
    duration_s: float
    at_s: float = 0.0
    """Time of the observation; only the order counts."""
    hardware: str = ""
    size: int | None = None
    backend: str | None = None
    file: str = ""
    suite: str = ""
    bad: bool = False
    """Whether it failed: its duration is ignored, but ``--failed-first`` uses it."""
    skipped: bool = False
    """Whether it was skipped: it counts for the same test on the same hardware only."""


class WorldStart(Frozen):
    """One observation of the time from the fork of a world to its first test."""

    shape: WorldShape
    duration_s: float


class Timings:
    """Expected durations, in seconds. Equal samples give equal answers, in any order of the files."""

    def __init__(
        self, samples: Iterable[Sample] = (), *, starts: Iterable[WorldStart] = (), hardware: str = ""
    ) -> None:
        self._hardware = hardware
        ordered = sorted(samples, key=lambda sample: (sample.at_s, sample.test, sample.duration_s))
        self._levels = _levels(sample for sample in ordered if not sample.bad)
        self._starts = _starts(starts)
        self._answers: dict[tuple[object, ...], float | None] = {}
        # In order of time: the last entry of each name stays.
        self._last = {sample.test: (sample.at_s, sample.bad) for sample in ordered}

    @property
    def known(self) -> bool:
        """Whether there are any observations."""
        return bool(self._levels)

    def expect(self, test: TestCase) -> float:
        """Return the expected duration of a test, without the start of its world."""
        # The closest observation is used: this hardware, any hardware, a JUnit file of any tool; then the median of
        # the tests of its file, of its suite, of all; then :data:`UNKNOWN_S`.
        size, backend = _shape_of(test)
        for key in (
            ("test", test.nodeid, size, backend, self._hardware),
            ("test", test.nodeid, size, backend),
            *(("junit", name) for name in junit_names(test)),
            ("file", test.file, size, backend),
            ("file", test.file),
            ("suite", test.suite),
            ("all",),
        ):
            answer = self._answer(key)
            if answer is not None:
                return answer
        return UNKNOWN_S

    def failed_among(self, tests: Iterable[TestCase]) -> frozenset[str]:
        """Return node ids of the tests whose last attempt failed, under any name that a file has for them."""
        return frozenset(test.nodeid for test in tests if self._failed_last(test))

    def _failed_last(self, test: TestCase) -> bool:
        names = (test.nodeid, *junit_names(test))
        # Files of several tools know the test under several names; the newest of them counts.
        _, bad = max((self._last[name] for name in names if name in self._last), default=(0.0, False))
        return bad

    def start_s(self, shape: WorldShape) -> float:
        """Return the expected time until the first test of a world of that shape."""
        return self._starts.get(shape, START_S.get(shape.device, UNKNOWN_S))

    def _answer(self, key: tuple[object, ...]) -> float | None:
        if key not in self._answers:
            durations = self._levels.get(key)
            of_test = key[0] in ("test", "junit")
            summary = _percentile if of_test else statistics.median
            self._answers[key] = summary(durations) if durations else None
        return self._answers[key]


def hardware_key(hardware: Hardware) -> str:
    """Return the part of the hardware that durations depend on: the GPU models, or ``cpu``."""
    return "+".join(sorted(set(hardware.gpus))) or "cpu"


def junit_names(test: TestCase) -> tuple[str, ...]:
    """Return the names of a test in JUnit files: as disttest writes it, and as pytest does."""
    path, classes, name = parts_of(test.nodeid)
    module = path.removesuffix(".py").replace("/", ".")
    return f"{test.classname}::{test.name}", f"{'.'.join([module, *classes])}::{name}"


def is_usable(duration_s: float) -> bool:
    """Return whether a number can be a duration: finite and not negative."""
    return math.isfinite(duration_s) and duration_s >= 0


def _shape_of(test: TestCase) -> tuple[int, str]:
    return (test.world.size, test.world.backend) if test.world else (0, "")


def _levels(samples: Iterable[Sample]) -> dict[tuple[object, ...], list[float]]:
    levels: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for sample in samples:
        # A skip for want of GPUs takes no time. Counted for its file, it made tests look free on machines
        # with GPUs.
        if sample.skipped:
            if sample.size is not None:
                levels["test", sample.test, sample.size, sample.backend or "", sample.hardware].append(
                    sample.duration_s
                )
            continue
        if sample.size is None:
            levels["junit", sample.test].append(sample.duration_s)
        else:
            key = ("test", sample.test, sample.size, sample.backend or "")
            levels[key].append(sample.duration_s)
            levels[(*key, sample.hardware)].append(sample.duration_s)
            levels["file", sample.file, sample.size, sample.backend or ""].append(sample.duration_s)
            levels["suite", sample.suite].append(sample.duration_s)
        levels["file", sample.file].append(sample.duration_s)
        levels["all",].append(sample.duration_s)
    return levels


def _percentile(durations_s: list[float]) -> float:
    """Return the nearest-rank percentile of the last runs; ``durations_s`` is in order of time."""
    last = sorted(durations_s[-WINDOW:])
    return last[math.ceil(PERCENTILE * len(last)) - 1]


def _starts(starts: Iterable[WorldStart]) -> dict[WorldShape, float]:
    by_shape: dict[WorldShape, list[float]] = defaultdict(list)
    for start in starts:
        by_shape[start.shape].append(start.duration_s)
    return {shape: statistics.median(durations) for shape, durations in by_shape.items()}
