"""``junit.xml``: one flat case per test, in pytest's xunit2 dialect, plus ``file`` and ``line``.

The ``junit-xml`` package writes it, a few cases at a time (see :mod:`disttest.reports.junit_case`), because a document
of 100,000 cases takes more memory than the run; :func:`_conform` corrects its output.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree

import junit_xml

from disttest.model import FactKind, Outcome
from disttest.reports.junit_case import (
    MAX_BYTES,
    SHORTEST_S,
    Cases,
    TextBudget,
    budgets_for,
    safe_seconds,
    safe_text,
)
from disttest.reports.log_excerpts import LogFolder
from disttest.reports.text import one_line
from disttest.results.fold import RunResult, TestOutcome
from disttest.results.recorded import facts_of

COLLECTION_SUITE = "collection"
CHUNK = 200
"""Number of cases in memory at the same time."""


def render_junit(run: RunResult, results_dir: Path | None = None) -> str:
    """Return the XML document; arguments and limits are those of :func:`write_junit`."""
    file = BytesIO()
    write_junit(run, results_dir, file)
    return file.getvalue().decode()


def write_junit(run: RunResult, results_dir: Path | None, file: BinaryIO) -> None:
    """Write the XML document, a few cases at a time, into a file that can be rewritten from its start.

    Logs are excerpted from ``results_dir``; without it they are left out. The file stays below :data:`MAX_BYTES`: with
    more failures each one carries less text, and finally passed tests are one line each. The properties of each suite
    state what was cut.
    """
    logs, budgets = LogFolder(results_dir), budgets_for(run)
    for budget in budgets:
        # A budget that did not fit has left a part of its document.
        file.seek(0)
        file.truncate()
        # The poorest budget is written whatever its size.
        limit = math.inf if budget is budgets[-1] else MAX_BYTES
        if _fits(_Document(run, logs, budget).pieces(), file, limit):
            return


def _fits(pieces: Iterator[bytes], file: BinaryIO, limit: float) -> bool:
    written = 0
    for piece in pieces:
        written += file.write(piece)
        if written > limit:
            return False
    return True


class _Document:
    """Builds the document of one run."""

    def __init__(self, run: RunResult, logs: LogFolder, budget: TextBudget) -> None:
        self.run = run
        self.budget = budget
        self.made = Cases(run, logs, budget)

    def pieces(self) -> Iterator[bytes]:
        """Yield the document from its first byte to its last."""
        suites: dict[str, list[TestOutcome]] = defaultdict(list)
        for test in self.run.tests:
            suites[safe_text(test.test.suite, "tests")].append(test)
        if self.run.collection_errors:
            # A suite of the user may have this name, too, and then has both kinds of cases.
            suites.setdefault(COLLECTION_SUITE, [])
        # The counts are attributes of the start tags, so they are needed before the first case is rendered.
        sums = {name: self.sum_up(name, tests) for name, tests in suites.items()}
        head, tail = _around(ElementTree.Element("testsuites", _total(sums.values())))
        yield b"<?xml version='1.0' encoding='utf-8'?>\n" + head
        for name, tests in suites.items():
            before, after = _around(self.suite(name, sums[name], tests))
            yield before
            yield from self.cases(tests)
            if name == COLLECTION_SUITE:
                yield from _cases([self.made.collection_case(error) for error in self.run.collection_errors])
            yield after
        yield tail

    def sum_up(self, name: str, tests: list[TestOutcome]) -> _Sum:
        kinds = Counter(self.element_of(test) for test in tests)
        seconds = sum(safe_seconds(test.final.duration_s) for test in tests)
        errors = len(self.run.collection_errors) if name == COLLECTION_SUITE else 0
        return _Sum(
            tests=len(tests) + errors,
            failures=kinds["failure"],
            errors=kinds["error"] + errors,
            skipped=kinds["skipped"],
            time=seconds + errors * SHORTEST_S,
        )

    def element_of(self, outcome: TestOutcome) -> str:
        """Return the name of the element for a test's outcome; empty for a passed test."""
        match outcome.final.outcome:
            case Outcome.FAILED:
                return "failure"
            case Outcome.ERROR:
                return "error"
            case _ if outcome.flaky and self.run.flaky_fails:
                return "failure"
            case Outcome.SKIPPED | Outcome.NOT_RUN | Outcome.XFAILED:
                return "skipped"
            case Outcome.PASSED | Outcome.XPASSED:
                return ""

    def suite(self, name: str, sums: _Sum, tests: list[TestOutcome]) -> ElementTree.Element:
        started = datetime.fromtimestamp(max(0.0, self.run.started_at_s), UTC).isoformat(timespec="seconds")
        facts = dict(_facts(self.run))
        for test in tests:
            recorded = facts_of(test.final, FactKind.SUITE_PROPERTY)
            facts |= {safe_text(fact, "-"): safe_text(value) for fact, value in recorded.items()}
        if self.budget.cut:
            facts["disttest.shortened"] = (
                f"left out to stay under {MAX_BYTES // 1_000_000} MB: {self.budget.cut}"
            )
        suite = junit_xml.TestSuite(
            name, [], timestamp=started, properties=facts, id=safe_text(self.run.run_id)
        )
        element: ElementTree.Element = suite.build_xml_doc()
        # pytest's dialect has no such attribute, and schema checks reject it.
        del element.attrib["disabled"]
        for key, number in sums._asdict().items():
            element.set(key, f"{number:.3f}" if key == "time" else str(number))
        return element

    def cases(self, tests: list[TestOutcome]) -> Iterator[bytes]:
        for start in range(0, len(tests), CHUNK):
            chunk = tests[start : start + CHUNK]
            extras = [
                _Extras(
                    self.made.attributes(test),
                    [*self.made.extras(test)],
                    is_xfail=test.final.outcome is Outcome.XFAILED,
                )
                for test in chunk
            ]
            yield from _cases([self.made.case(test) for test in chunk], extras)


class _Extras(NamedTuple):
    """Parts of a case that junit-xml does not write."""

    attributes: dict[str, str]
    elements: list[ElementTree.Element]
    is_xfail: bool


_NOTHING = _Extras({}, [], is_xfail=False)


def _insert_attempts(case: ElementTree.Element, elements: Iterable[ElementTree.Element]) -> None:
    """Insert properties first, and reruns between the verdict and the output."""
    for element in elements:
        output = case.find("system-out")
        place = len(case) if output is None else list(case).index(output)
        case.insert(0 if element.tag == "properties" else place, element)


def _facts(run: RunResult) -> Iterator[tuple[str, str]]:
    """Yield properties of the run; every suite repeats them, because consumers read them there."""
    hardware = run.hardware
    facts = {
        "disttest": run.disttest,
        "python": hardware.python,
        "torch": hardware.torch,
        "platform": hardware.platform,
        "cpus": str(hardware.cpus or ""),
        "gpus": ", ".join(hardware.gpus),
        "gpu_uuids": ", ".join(hardware.uuids),
        "driver": hardware.driver,
        "slots": str(run.slots or ""),
        "cpu_slots": str(run.cpu_slots or ""),
        "reason": run.reason,
    }
    for name, fact in facts.items():
        if fact:
            yield f"disttest.{name}" if name != "disttest" else "disttest.version", one_line(fact)


class _Sum(NamedTuple):
    """Counts of a suite, by the names of its attributes."""

    tests: int
    failures: int
    errors: int
    skipped: int
    time: float


def _total(sums: Collection[_Sum]) -> dict[str, str]:
    # The root of the dialect has no attribute for skipped tests.
    counts = {key: str(sum(getattr(one, key) for one in sums)) for key in ("tests", "failures", "errors")}
    # Rounded first, so that the total is the sum of the times that the suites show.
    seconds = sum(round(one.time, 3) for one in sums)
    return {"name": "disttest", **counts, "time": f"{seconds:.3f}"}


def _around(element: ElementTree.Element) -> tuple[bytes, bytes]:
    """Return the text before and after the children that will follow."""
    # A placeholder at which the serialized element is divided.
    ElementTree.SubElement(element, "cut")
    before, _, after = ElementTree.tostring(element, encoding="utf-8").partition(b"<cut />")
    return before, after


def _cases(cases: list[junit_xml.TestCase], extras: Sequence[_Extras] = ()) -> Iterator[bytes]:
    """Yield the elements of cases in the dialect."""
    # junit-xml makes elements for whole suites only. The suite around these cases is thrown away.
    suite: ElementTree.Element = junit_xml.TestSuite("", cases).build_xml_doc()
    for case, more in zip_longest(suite.iter("testcase"), extras, fillvalue=_NOTHING):
        assert isinstance(case, ElementTree.Element)
        _insert_attempts(case, more.elements)
        _conform(case, is_xfail=more.is_xfail)
        # An attribute of the test must not replace one by which consumers identify the case.
        for name in more.attributes.keys() - case.attrib.keys():
            case.set(name, more.attributes[name])
        yield ElementTree.tostring(case, encoding="utf-8")


def _conform(case: ElementTree.Element, *, is_xfail: bool) -> None:
    # junit-xml writes six decimals, and no time at all for zero; pytest's dialect has three decimals.
    case.set("time", f"{float(case.get('time', SHORTEST_S)):.3f}")
    for skipped in case.iter("skipped"):
        # pytest itself writes these two types, and consumers separate expected failures from skips by them.
        skipped.set("type", "pytest.xfail" if is_xfail else "pytest.skip")
