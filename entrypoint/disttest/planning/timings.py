"""How long tests take: what past runs teach, as a table that answers for any test. Pure; the files are read elsewhere.

Keyed by hardware, world size, backend and test, since each of them changes how long a test takes. The answer is the
85th percentile of the last runs: a plan that hopes for the median is late every other time. Only attempts that did
not fail count, as a failing test may end at once or at its deadline.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable

from disttest.model import Frozen, Hardware, TestCase, WorldShape

WINDOW = 20
"""Runs of a test that are looked at, counted from the last."""

PERCENTILE = 0.85

UNKNOWN_S = 1.0
"""Expected of a test when nothing at all is known; only ratios matter then."""

START_S = {"cpu": 0.3, "cuda": 3.0}
"""Expected of the start of a world by device type, until a journal says better."""


class Sample(Frozen):
    """One observation of a test. ``size`` and ``backend`` are None where the source does not say (JUnit)."""

    test: str
    """Node id, or ``classname::name`` from a JUnit file."""
    duration_s: float
    at_s: float = 0.0
    """When; only the order counts."""
    hardware: str = ""
    size: int | None = None
    backend: str | None = None
    file: str = ""
    suite: str = ""
    bad: bool = False
    """It failed: its time teaches nothing, but ``--failed-first`` wants to know."""
    skipped: bool = False
    """It did not run: that teaches something of the same test on the same hardware only."""


class WorldStart(Frozen):
    """One observation of how long a world took from fork to its first test."""

    shape: WorldShape
    duration_s: float


class Timings:
    """Expected durations, in seconds. Equal samples give equal answers, whatever their order in the files."""

    def __init__(
        self, samples: Iterable[Sample] = (), *, starts: Iterable[WorldStart] = (), hardware: str = ""
    ) -> None:
        self._hardware = hardware
        ordered = sorted(samples, key=lambda sample: (sample.at_s, sample.test, sample.duration_s))
        self._levels = _levels(sample for sample in ordered if not sample.bad)
        self._starts = _starts(starts)
        self._answers: dict[tuple[object, ...], float | None] = {}
        self._last = {sample.test: (sample.at_s, sample.bad) for sample in ordered}

    @property
    def known(self) -> bool:
        """Whether anything is."""
        return bool(self._levels)

    def expect(self, test: TestCase) -> float:
        """How long a test is expected to take, the start of its world not included.

        The closest observation answers: this hardware, any hardware, a JUnit file of any tool; then the median of
        the tests of its file, of its suite, of all; then :data:`UNKNOWN_S`.
        """
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
        """Node ids of the tests whose last attempt failed, under whichever name a file has them."""
        return frozenset(test.nodeid for test in tests if self._failed_last(test))

    def _failed_last(self, test: TestCase) -> bool:
        names = (test.nodeid, *junit_names(test))
        _, bad = max((self._last[name] for name in names if name in self._last), default=(0.0, False))
        return bad

    def start_s(self, shape: WorldShape) -> float:
        """How long a world of that shape is expected to take until its first test."""
        return self._starts.get(shape, START_S.get(shape.device, UNKNOWN_S))

    def _answer(self, key: tuple[object, ...]) -> float | None:
        if key not in self._answers:
            durations = self._levels.get(key)
            of_test = key[0] in ("test", "junit")
            summary = _percentile if of_test else statistics.median
            self._answers[key] = summary(durations) if durations else None
        return self._answers[key]


def hardware_key(hardware: Hardware) -> str:
    """The hardware as far as durations depend on it: the GPU models, or ``cpu``."""
    return "+".join(sorted(set(hardware.gpus))) or "cpu"


def junit_names(test: TestCase) -> tuple[str, ...]:
    """The names under which a test may stand in a JUnit file: as we write it, and as pytest does."""
    path, _, rest = test.nodeid.partition("::")
    *classes, name = rest.split("::") if rest else [test.name]
    module = path.removesuffix(".py").replace("/", ".")
    return f"{test.classname}::{test.name}", f"{'.'.join([module, *classes])}::{name}"


def is_usable(duration_s: float) -> bool:
    """Whether a number can be a duration: finite and not negative."""
    return math.isfinite(duration_s) and duration_s >= 0


def _shape_of(test: TestCase) -> tuple[int, str]:
    return (test.world.size, test.world.backend) if test.world else (0, "")


def _levels(samples: Iterable[Sample]) -> dict[tuple[object, ...], list[float]]:
    levels: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for sample in samples:
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
    """The nearest-rank percentile of the last runs; ``durations_s`` is in order of time."""
    last = sorted(durations_s[-WINDOW:])
    return last[math.ceil(PERCENTILE * len(last)) - 1]


def _starts(starts: Iterable[WorldStart]) -> dict[WorldShape, float]:
    by_shape: dict[WorldShape, list[float]] = defaultdict(list)
    for start in starts:
        by_shape[start.shape].append(start.duration_s)
    return {shape: statistics.median(durations) for shape, durations in by_shape.items()}
