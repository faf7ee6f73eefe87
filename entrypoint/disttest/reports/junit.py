"""``junit.xml``: one flat case per test, in the dialect that pytest calls xunit2, plus ``file`` and ``line``.

The ``junit-xml`` package builds the elements. It has defects (an error without text is written as a pass, a
lone surrogate breaks the file, a time of zero disappears, equal names are not told apart), so everything
that goes into it passes through :func:`_text` and :func:`_seconds` here, and what comes out of it through
:func:`_conform`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

import junit_xml

from disttest.model import Cause, Outcome, RankEnd, RankRecord, TestResult, rank_name
from disttest.reports.digest import evidence
from disttest.reports.logs import LogFolder
from disttest.reports.text import clean, one_line, shorten
from disttest.results.fold import CollectionError, RunResult, TestOutcome
from disttest.results.repeat import repeat_command

MAX_BYTES = 24_000_000
"""GitLab takes files under 30 MB."""
MAX_TEXT = 1_000_000
"""Characters of one text node; a common publisher rejects nodes of 10 MB."""
SHORTEST_S = 0.001
COLLECTION_SUITE = "collection"


@dataclass(frozen=True, kw_only=True)
class _Room:
    """How much text a test case may carry, so that the whole file stays small enough to be loaded."""

    details: int
    """Characters of a failure's text."""
    bad_log: int
    """Bytes of each rank's log, for a test that failed."""
    good_log: int
    """The same for a test that passed."""

    def scaled(self, factor: float) -> _Room:
        return _Room(
            details=int(self.details * factor) + 500,
            bad_log=int(self.bad_log * factor),
            good_log=int(self.good_log * factor),
        )


def render_junit(run: RunResult, results_dir: Path | None = None) -> str:
    """Return the XML document. Logs are excerpted from ``results_dir``; without it they are left out.

    The file stays under :data:`MAX_BYTES`: the more tests failed, the less text each of them carries.
    """
    logs = LogFolder(results_dir)
    room = _fair_room(run)
    for factor in (1.0, 0.5, 0.1, 0.0):
        xml = _Document(run, logs, room.scaled(factor)).render()
        if len(xml) <= MAX_BYTES:
            break
    return xml.decode()


def _fair_room(run: RunResult) -> _Room:
    failures = sum(attempt.outcome.is_bad for test in run.tests for attempt in test.attempts)
    ranks = Counter[bool]()
    for test in run.tests:
        ranks[_has_failed(test)] += sum(len(attempt.ranks) for attempt in test.attempts)
    return _Room(
        details=min(60_000, 5_000_000 // max(1, failures)),
        bad_log=min(16_000, 8_000_000 // max(1, ranks[True])),
        good_log=min(2_000, 3_000_000 // max(1, ranks[False])),
    )


def _has_failed(test: TestOutcome) -> bool:
    return any(attempt.outcome.is_bad for attempt in test.attempts)


class _Document:
    """Builds the document of one run."""

    def __init__(self, run: RunResult, logs: LogFolder, room: _Room) -> None:
        self.run = run
        self.logs = logs
        self.room = room
        self.seen: Counter[tuple[str, str]] = Counter()
        root = Path(run.root)
        self.root = root if run.root and root.is_dir() else None

    def render(self) -> bytes:
        cases: dict[str, list[junit_xml.TestCase]] = defaultdict(list)
        tests: dict[str, list[TestOutcome]] = defaultdict(list)
        for test in self.run.tests:
            suite = _text(test.test.suite, "tests")
            cases[suite].append(self.case(test))
            tests[suite].append(test)
        for error in self.run.collection_errors:
            cases[COLLECTION_SUITE].append(self.collection_case(error))
        document = ElementTree.Element("testsuites", {"name": "disttest"})
        for suite, members in cases.items():
            document.append(element := self.suite(suite, members))
            # A collection error has no attempts; it comes after the tests of a suite of that name.
            for case, test in zip(element.iter("testcase"), tests[suite], strict=False):
                _insert_attempts(case, [*self.attempts(test)])
        _conform(document)
        xml: bytes = ElementTree.tostring(document, encoding="utf-8", xml_declaration=True)
        return xml

    def suite(self, name: str, cases: list[junit_xml.TestCase]) -> ElementTree.Element:
        started = datetime.fromtimestamp(max(0.0, self.run.started_at_s), UTC).isoformat(timespec="seconds")
        suite = junit_xml.TestSuite(
            name, cases, timestamp=started, properties=dict(_facts(self.run)), id=_text(self.run.run_id)
        )
        element: ElementTree.Element = suite.build_xml_doc()
        return element

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
        self.seen[classname, name] += 1
        seen = self.seen[classname, name]
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


def _insert_attempts(case: ElementTree.Element, elements: list[ElementTree.Element]) -> None:
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
        "slots": str(run.slots or ""),
        "reason": run.reason,
    }
    for name, fact in facts.items():
        if fact:
            yield f"disttest.{name}" if name != "disttest" else "disttest.version", one_line(fact)


def _conform(document: ElementTree.Element) -> None:
    """Bring the package's elements in line with the dialect and sum them up at the top."""
    totals: Counter[str] = Counter()
    seconds = 0.0
    for suite in document:
        suite.attrib.pop("disabled", None)
        seconds += (time_s := float(suite.get("time", "0")))
        suite.set("time", f"{time_s:.3f}")
        totals.update({key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors")})
    for case in document.iter("testcase"):
        case.set("time", f"{float(case.get('time', SHORTEST_S)):.3f}")
    for skipped in document.iter("skipped"):
        expected = skipped.get("message", "").startswith("expected failure")
        skipped.set("type", "pytest.xfail" if expected else "pytest.skip")
    for key in ("tests", "failures", "errors"):
        document.set(key, str(totals[key]))
    document.set("time", f"{seconds:.3f}")
