"""``junit.xml``: one flat case per test, in the dialect that pytest calls xunit2, plus ``file`` and ``line``.

The ``junit-xml`` package builds the elements. It has defects (an error without text is written as a pass, a
lone surrogate breaks the file, a time of zero disappears, equal names are not told apart), so everything
that goes into it passes through :func:`_text` and :func:`_seconds` here, and what comes out of it through
:func:`_conform`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from io import BytesIO
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree

import junit_xml

from disttest.model import Cause, Outcome, RankEnd, RankRecord, TestResult, rank_name
from disttest.reports.digest import evidence
from disttest.reports.junit_room import MAX_BYTES, Room, has_failed, rooms_for
from disttest.reports.logs import LogFolder
from disttest.reports.text import clean, one_line, shorten
from disttest.results.fold import CollectionError, RunResult, TestOutcome
from disttest.results.repeat import repeat_command

MAX_TEXT = 1_000_000
"""Characters of one text node; a common publisher rejects nodes of 10 MB."""
SHORTEST_S = 0.001
COLLECTION_SUITE = "collection"
CHUNK = 200
"""Cases that are in memory at once."""


def render_junit(run: RunResult, results_dir: Path | None = None) -> str:
    """Return the XML document; arguments and limits are those of :func:`write_junit`."""
    file = BytesIO()
    write_junit(run, results_dir, file)
    return file.getvalue().decode()


def write_junit(run: RunResult, results_dir: Path | None, file: BinaryIO) -> None:
    """Write the XML document, a few cases at a time, into a file that can be written again from its start.

    Logs are excerpted from ``results_dir``; without it they are left out. The file stays under :data:`MAX_BYTES`:
    the more tests failed, the less text each of them carries, and in the end tests that passed are a line each.
    What was cut is stated in the properties of each suite.
    """
    logs, rooms = LogFolder(results_dir), rooms_for(run)
    for room in rooms:
        file.seek(0)
        file.truncate()
        limit = math.inf if room is rooms[-1] else MAX_BYTES
        if _fits(_Document(run, logs, room).pieces(), file, limit):
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

    def __init__(self, run: RunResult, logs: LogFolder, room: Room) -> None:
        self.run = run
        self.logs = logs
        self.room = room
        self.seen: Counter[int] = Counter()
        """Hashes of names that were given, since the names themselves would be a copy of half the run."""
        root = Path(run.root)
        self.root = root if run.root and root.is_dir() else None

    def pieces(self) -> Iterator[bytes]:
        """The document from its first byte to its last."""
        suites: dict[str, list[TestOutcome]] = defaultdict(list)
        for test in self.run.tests:
            suites[_text(test.test.suite, "tests")].append(test)
        if self.run.collection_errors:
            suites.setdefault(COLLECTION_SUITE, [])
        sums = {name: self.sum_up(name, tests) for name, tests in suites.items()}
        head, tail = _around(ElementTree.Element("testsuites", _total(sums.values())))
        yield b"<?xml version='1.0' encoding='utf-8'?>\n" + head
        for name, tests in suites.items():
            before, after = _around(self.suite(name, sums[name]))
            yield before
            yield from self.cases(tests)
            if name == COLLECTION_SUITE:
                yield from _cases([self.collection_case(error) for error in self.run.collection_errors])
            yield after
        yield tail

    def sum_up(self, name: str, tests: list[TestOutcome]) -> _Sum:
        kinds = Counter(self.element_of(test) for test in tests)
        seconds = sum(_seconds(test.final.duration_s) for test in tests)
        errors = len(self.run.collection_errors) if name == COLLECTION_SUITE else 0
        return _Sum(
            tests=len(tests) + errors,
            failures=kinds["failure"],
            errors=kinds["error"] + errors,
            skipped=kinds["skipped"],
            time=seconds + errors * SHORTEST_S,
        )

    def element_of(self, outcome: TestOutcome) -> str:
        """The name of the element that says what a test came to; empty for one that passed."""
        match outcome.final.outcome:
            case Outcome.FAILED:
                return "failure"
            case Outcome.ERROR:
                return "error"
            case _ if outcome.flaky and self.run.flaky_fails:
                return "failure"
            case Outcome.SKIPPED | Outcome.XFAILED:
                return "skipped"
            case Outcome.PASSED | Outcome.XPASSED:
                return ""

    def suite(self, name: str, sums: _Sum) -> ElementTree.Element:
        started = datetime.fromtimestamp(max(0.0, self.run.started_at_s), UTC).isoformat(timespec="seconds")
        facts = dict(_facts(self.run))
        if self.room.cut:
            facts["disttest.shortened"] = (
                f"left out to stay under {MAX_BYTES // 1_000_000} MB: {self.room.cut}"
            )
        suite = junit_xml.TestSuite(name, [], timestamp=started, properties=facts, id=_text(self.run.run_id))
        element: ElementTree.Element = suite.build_xml_doc()
        del element.attrib["disabled"]
        for key, number in sums._asdict().items():
            element.set(key, f"{number:.3f}" if key == "time" else str(number))
        return element

    def cases(self, tests: list[TestOutcome]) -> Iterator[bytes]:
        for start in range(0, len(tests), CHUNK):
            chunk = tests[start : start + CHUNK]
            earlier = [[*self.attempts(test)] for test in chunk]
            yield from _cases([self.case(test) for test in chunk], earlier)

    def attempts(self, outcome: TestOutcome) -> Iterator[ElementTree.Element]:
        """What the earlier attempts came to, in the elements of Maven's Surefire, which consumers of reruns read."""
        if len(outcome.attempts) == 1:
            return
        properties = ElementTree.Element("properties")
        for name, value in (("attempts", len(outcome.attempts)), ("flaky", outcome.flaky)):
            fact = {"name": f"disttest.{name}", "value": str(value).lower()}
            properties.append(ElementTree.Element("property", fact))
        yield properties
        prefix = "flaky" if outcome.flaky else "rerun"
        for attempt in outcome.attempts[:-1]:
            if not attempt.outcome.is_bad:
                continue
            kind = "Error" if attempt.outcome is Outcome.ERROR else "Failure"
            facts = {"message": _message(attempt), "type": _kind(attempt, kind.lower())}
            element = ElementTree.Element(f"{prefix}{kind}", facts)
            trace = ElementTree.SubElement(element, "stackTrace")
            trace.text = self.body(outcome, attempt)
            yield element

    def case(self, outcome: TestOutcome) -> junit_xml.TestCase:
        test = outcome.test
        classname, name = self.unique(_text(test.classname, test.suite), _text(test.name, test.nodeid))
        file = self.source(test.file)
        case = junit_xml.TestCase(
            name,
            classname,
            elapsed_sec=_seconds(outcome.final.duration_s),
            stdout=_text("\n".join(self.system_out(outcome)), limit=MAX_TEXT),
            file=file,
            line=max(1, test.line) if file else None,
        )
        self.judge(case, outcome)
        return case

    def judge(self, case: junit_xml.TestCase, outcome: TestOutcome) -> None:
        result = outcome.final
        message = _message(result, limit=min(2000, self.room.details))
        match result.outcome:
            case Outcome.FAILED:
                case.add_failure_info(message, self.body(outcome), _kind(result, "failure"))
            case Outcome.ERROR:
                case.add_error_info(message, self.body(outcome), _kind(result, "error"))
            case _ if outcome.flaky and self.run.flaky_fails:
                first = outcome.first_bad
                message = (
                    f"flaky: passed at attempt {result.attempt}; attempt {first.attempt}: {_message(first)}"
                )
                case.add_failure_info(message, self.body(outcome, first), "flaky")
            case Outcome.SKIPPED:
                case.add_skipped_info(message)
            case Outcome.XFAILED:
                case.add_skipped_info(f"expected failure: {message}")
            case Outcome.PASSED | Outcome.XPASSED:
                pass

    def collection_case(self, error: CollectionError) -> junit_xml.TestCase:
        path, _, _ = error.nodeid.partition("::")
        classname, name = self.unique("collection", _text(error.nodeid, "collection"))
        file = self.source(path)
        case = junit_xml.TestCase(
            name, classname, elapsed_sec=SHORTEST_S, file=file, line=1 if file else None
        )
        last = error.message.strip().rpartition("\n")[2]
        case.add_error_info(
            one_line(f"could not be collected: {last}"),
            _text(shorten(clean(error.message), self.room.details), "no message"),
            "collection",
        )
        return case

    def unique(self, classname: str, name: str) -> tuple[str, str]:
        """Tell equal names apart: consumers keep one of two, or take them for runs of one test."""
        key = hash((classname, name))
        self.seen[key] += 1
        seen = self.seen[key]
        return (classname, name) if seen == 1 else self.unique(classname, f"{name} #{seen}")

    def source(self, file: str) -> str | None:
        """``file`` if it can be shown beside the code: relative, below the root, not known to be missing."""
        path = PurePosixPath(clean(file))
        if not file or path.is_absolute() or ".." in path.parts:
            return None
        return None if self.root and not (self.root / path).exists() else str(path)

    def body(self, outcome: TestOutcome, result: TestResult | None = None) -> str:
        """The text of a failure: the finding, the details, what the other ranks say, and how to repeat it."""
        result = result or outcome.final
        parts = [clean(result.message), *_labels(result), *evidence(result)]
        text = shorten("\n\n".join(part for part in parts if part.strip()), self.room.details)
        return _text(f"{text}\n\nrepeat: {repeat_command(outcome.test, self.run)}", "no details")

    def system_out(self, outcome: TestOutcome) -> Iterator[str]:
        if self.room.lines_for_good and not has_failed(outcome):
            return
        if outcome.test.world:
            yield f"world: {outcome.test.world}, {outcome.test.isolation}"
        for attempt in outcome.attempts:
            if len(outcome.attempts) > 1:
                yield f"===== attempt {attempt.attempt}: {attempt.outcome}: {_message(attempt)} ====="
            yield from (f"note: {one_line(note)}" for note in attempt.notes)
            for rank in attempt.ranks:
                yield from self.log_excerpt(attempt, rank)
        yield from self.attachments(outcome)

    def log_excerpt(self, attempt: TestResult, rank: RankRecord) -> Iterator[str]:
        room = self.room.bad_log if attempt.outcome.is_bad else self.room.good_log
        if room < 200:  # a few words of a log explain nothing; the whole of it is attached
            return
        excerpt = self.logs.excerpt(rank.log, head_bytes=room // 4, tail_bytes=room - room // 4)
        if excerpt and str(excerpt).strip():
            yield f"----- {rank_name(rank.rank)} -----"
            yield _unattached(str(excerpt).strip("\n"))

    def attachments(self, outcome: TestOutcome) -> Iterator[str]:
        for attempt in outcome.attempts:
            for rank in attempt.ranks:
                if self.logs.path(rank.log) and clean(rank.log) == rank.log and "]]" not in rank.log:
                    yield f"[[ATTACHMENT|{rank.log}]]"


def _insert_attempts(case: ElementTree.Element, elements: Iterable[ElementTree.Element]) -> None:
    """Properties first, reruns after the verdict and before what was printed."""
    for element in elements:
        output = case.find("system-out")
        place = len(case) if output is None else list(case).index(output)
        case.insert(0 if element.tag == "properties" else place, element)


def _text(text: str | bytes, default: str = "", *, limit: int = MAX_TEXT) -> str:
    """Text that the package can be given: cleaned, bounded, and never empty where a default is given."""
    return shorten(clean(text), limit).strip() or (clean(default).strip() or "-" if default else "")


def _seconds(seconds: float) -> float:
    """A time that the package does not drop: zero, negative and unknown become the shortest one."""
    return round(seconds, 3) if SHORTEST_S <= seconds < 1e9 else SHORTEST_S


def _message(result: TestResult, limit: int = 400) -> str:
    """One line, never empty: the package writes a failure that has neither message nor text as a pass."""
    return one_line(result.message, limit) or str(result.outcome)


def _kind(result: TestResult, default: str) -> str:
    """What kind of failure, for tools that group by it."""
    culprit = next((rank for rank in result.ranks if rank.rank == result.culprit), None)
    if any(rank.hung for rank in result.ranks):
        return "timeout"
    if result.cause is Cause.INFRASTRUCTURE:
        return "infrastructure"
    if culprit and culprit.end in (RankEnd.SIGNALLED, RankEnd.EXITED, RankEnd.LOST):
        return "crash"
    return default


def _labels(result: TestResult) -> list[str]:
    labels = [f"phase: {result.phase}"]
    if result.cause:
        labels.append(f"cause: {result.cause}")
    if result.culprit is not None:
        labels.append(f"culprit: {rank_name(result.culprit)}")
    if result.victims:
        labels.append(f"victims: {', '.join(map(rank_name, result.victims))}")
    return ["  ".join(labels)]


def _unattached(text: str) -> str:
    """A log must not be able to attach files: publishers copy what such a line names."""
    return text.replace("[[ATTACHMENT|", "[[ATTACHMENT |")


def _facts(run: RunResult) -> Iterator[tuple[str, str]]:
    """Properties of the run, repeated for every suite since consumers read them there."""
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
        "reason": run.reason,
    }
    for name, fact in facts.items():
        if fact:
            yield f"disttest.{name}" if name != "disttest" else "disttest.version", one_line(fact)


class _Sum(NamedTuple):
    """What the cases of a suite come to, by the names of its attributes."""

    tests: int
    failures: int
    errors: int
    skipped: int
    time: float


def _total(sums: Collection[_Sum]) -> dict[str, str]:
    counts = {key: str(sum(getattr(one, key) for one in sums)) for key in ("tests", "failures", "errors")}
    seconds = sum(round(one.time, 3) for one in sums)
    return {"name": "disttest", **counts, "time": f"{seconds:.3f}"}


def _around(element: ElementTree.Element) -> tuple[bytes, bytes]:
    """What stands before and after the children that are still to come."""
    ElementTree.SubElement(element, "cut")
    before, _, after = ElementTree.tostring(element, encoding="utf-8").partition(b"<cut />")
    return before, after


def _cases(
    cases: list[junit_xml.TestCase], earlier: Sequence[list[ElementTree.Element]] = ()
) -> Iterator[bytes]:
    """The elements of cases, as the package makes them, in line with the dialect."""
    suite: ElementTree.Element = junit_xml.TestSuite("", cases).build_xml_doc()
    for case, attempts in zip_longest(suite.iter("testcase"), earlier, fillvalue=()):
        assert isinstance(case, ElementTree.Element)
        _insert_attempts(case, attempts)
        _conform(case)
        yield ElementTree.tostring(case, encoding="utf-8")


def _conform(case: ElementTree.Element) -> None:
    case.set("time", f"{float(case.get('time', SHORTEST_S)):.3f}")
    for skipped in case.iter("skipped"):
        expected = skipped.get("message", "").startswith("expected failure")
        skipped.set("type", "pytest.xfail" if expected else "pytest.skip")
