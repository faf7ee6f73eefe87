"""One case of ``junit.xml``: the outcome of a test in elements that consumers know.

The ``junit-xml`` package builds them. It has defects: an error without text becomes a pass, a lone surrogate breaks the
file, a time of zero disappears, and equal names stay equal. All values therefore pass through :func:`safe_text` and
:func:`safe_seconds`. The amount of text is limited, so that consumers can load the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

import junit_xml

from disttest.model import FactKind, Outcome, RankRecord, TestResult, rank_name, rank_names
from disttest.reports.aggregates import evidence
from disttest.reports.location import Repository, locate
from disttest.reports.log_excerpts import LogFolder
from disttest.reports.text import clean, one_line, shorten
from disttest.results.findings import describe_plugins
from disttest.results.fold import CollectionError, RunResult, TestOutcome
from disttest.results.narrative import how_failed
from disttest.results.recorded import facts_of, warning_lines
from disttest.results.repeat import command_lines

MAX_BYTES = 24_000_000
"""GitLab accepts files below 30 MB."""


@dataclass(frozen=True, kw_only=True)
class TextBudget:
    """Limits of the text of a test case."""

    details: int
    """Characters of a failure's text."""
    bad_log: int
    """Bytes of each rank's log for a failed test."""
    good_log: int
    """The same for a passed test."""

    lines_for_good: bool = False
    """Whether a passed test is a single line, without attached logs."""
    cut: str = ""
    """Description of the parts that are left out."""

    def scaled(self, factor: float, *, lines_for_good: bool = False) -> TextBudget:
        """Scale all limits down."""
        cut = "texts of failures and logs" if factor else "most text of failures, all text of logs"
        return TextBudget(
            # Even the poorest budget has room for an exception and its line.
            details=int(self.details * factor) + 500,
            bad_log=int(self.bad_log * factor),
            good_log=int(self.good_log * factor),
            lines_for_good=lines_for_good,
            cut=cut + (", attachments of tests that passed" if lines_for_good else ""),
        )


def budgets_for(run: RunResult) -> list[TextBudget]:
    """Return the budgets to try, from the richest to the poorest, which is the last resort."""
    fair = _fair_budget(run)
    poorest = fair.scaled(0.0, lines_for_good=True)
    # To render each budget takes as long as all other reports, so budgets that cannot fit are not tried.
    if _least_bytes(run) > MAX_BYTES:
        return [poorest]
    return [fair, *(fair.scaled(factor) for factor in (0.5, 0.1, 0.0)), poorest]


def _least_bytes(run: RunResult) -> int:
    """Estimate the minimum size with every log attached; the markup of a case takes about 150 bytes."""
    return sum(
        len(outcome.test.name)
        + len(outcome.test.classname)
        + len(outcome.test.file)
        + 150
        + sum(len(rank.log) + 18 for attempt in outcome.attempts for rank in attempt.ranks)
        for outcome in run.tests
    )


def _fair_budget(run: RunResult) -> TextBudget:
    failures = sum(attempt.outcome.is_bad for test in run.tests for attempt in test.attempts)
    ranks = Counter[bool]()
    for test in run.tests:
        ranks[has_failed(test)] += sum(len(attempt.ranks) for attempt in test.attempts)
    # Shares of MAX_BYTES: 5 MB for texts of failures, 8 and 3 MB for logs. Markup and names take the rest.
    return TextBudget(
        details=min(60_000, 5_000_000 // max(1, failures)),
        bad_log=min(16_000, 8_000_000 // max(1, ranks[True])),
        good_log=min(2_000, 3_000_000 // max(1, ranks[False])),
    )


def has_failed(test: TestOutcome) -> bool:
    """Whether any attempt of a test failed."""
    return any(attempt.outcome.is_bad for attempt in test.attempts)


MAX_TEXT = 1_000_000
"""Characters of one text node; a common publisher rejects nodes of 10 MB."""
SHORTEST_S = 0.001
# No colon: a prefix of a namespace that is not declared makes the file invalid.
_ATTRIBUTE = re.compile(r"[A-Za-z_][\w.-]*")


class Cases:
    """Builds the cases of one run within a text budget."""

    def __init__(self, run: RunResult, logs: LogFolder, budget: TextBudget) -> None:
        self.run = run
        self.logs = logs
        self.budget = budget
        self.seen: Counter[int] = Counter()
        """Hashes of the names in use; the names themselves would copy half of the run."""
        self.repository = Repository.of(run)
        root = Path(run.root)
        self.root = root if run.root and root.is_dir() else None

    def case(self, outcome: TestOutcome) -> junit_xml.TestCase:
        """Build the case of a test; its earlier attempts become separate elements."""
        test = outcome.test
        classname, name = self._unique(
            safe_text(test.classname, test.suite), safe_text(test.name, test.nodeid)
        )
        file = self._source(test.file)
        case = junit_xml.TestCase(
            name,
            classname,
            elapsed_sec=safe_seconds(outcome.final.duration_s),
            stdout=safe_text("\n".join(self._system_out(outcome)), limit=MAX_TEXT),
            file=file,
            line=self._line(outcome, file) if file else None,
        )
        self._judge(case, outcome)
        return case

    def _line(self, outcome: TestOutcome, file: str) -> int:
        """Return the line of the failure if it is in the test's own file, otherwise the first line of the test."""
        place = locate(outcome, self.repository) if outcome.final.outcome.is_bad else None
        return place.line if place and place.file == file else max(1, outcome.test.line)

    def _judge(self, case: junit_xml.TestCase, outcome: TestOutcome) -> None:
        result = outcome.final
        message = _message(result, limit=min(2000, self.budget.details))
        match result.outcome:
            case Outcome.FAILED:
                case.add_failure_info(message, self._body(outcome), how_failed(result))
            case Outcome.ERROR:
                case.add_error_info(message, self._body(outcome), how_failed(result))
            # A flaky test is a failure here, so this case precedes those of passed tests.
            case _ if outcome.flaky and self.run.flaky_fails:
                first = outcome.first_bad
                message = (
                    f"flaky: passed at attempt {result.attempt}; attempt {first.attempt}: {_message(first)}"
                )
                case.add_failure_info(message, self._body(outcome, first), "flaky")
            case Outcome.SKIPPED | Outcome.NOT_RUN:
                case.add_skipped_info(message)
            case Outcome.XFAILED:
                case.add_skipped_info(f"expected failure: {message}")
            case Outcome.PASSED | Outcome.XPASSED:
                pass

    def collection_case(self, error: CollectionError) -> junit_xml.TestCase:
        """Build the case of a file that could not be collected."""
        path, _, _ = error.nodeid.partition("::")
        classname, name = self._unique("collection", safe_text(error.nodeid, "collection"))
        file = self._source(path)
        case = junit_xml.TestCase(
            name, classname, elapsed_sec=SHORTEST_S, file=file, line=1 if file else None
        )
        last = error.message.strip().rpartition("\n")[2]
        case.add_error_info(
            one_line(f"could not be collected: {last}"),
            safe_text(error.message, "no message", limit=self.budget.details),
            "collection",
        )
        return case

    def _unique(self, classname: str, name: str) -> tuple[str, str]:
        """Make names unique: consumers drop one of two equal names, or merge them."""
        # A collision only adds a number to a name.
        key = hash((classname, name))
        self.seen[key] += 1
        seen = self.seen[key]
        # The numbered name may be taken as well.
        return (classname, name) if seen == 1 else self._unique(classname, f"{name} #{seen}")

    def _source(self, file: str) -> str | None:
        """Return ``file`` for display next to the code, or None.

        It must be relative, below the root, and not known to be missing.
        """
        path = PurePosixPath(clean(file))
        if not file or path.is_absolute() or ".." in path.parts:
            return None
        if self.root and not (self.root / path).exists():
            return None
        return self.repository.relative(str(path)) or str(path)

    def _body(self, outcome: TestOutcome, result: TestResult | None = None) -> str:
        """Build the text of a failure: finding, details, other ranks, and the repeat command."""
        result = result or outcome.final
        found = clean("\n".join(describe_plugins(result)))
        parts = [clean(result.message), *_labels(result), *evidence(result), found]
        text = shorten("\n\n".join(part for part in parts if part.strip()), self.budget.details)
        commands = "\n".join(command_lines(outcome.test, result, self.run))
        return safe_text(f"{text}\n\n{commands}", "no details")

    def _system_out(self, outcome: TestOutcome) -> Iterator[str]:
        if self.budget.lines_for_good and not has_failed(outcome):
            return
        if outcome.test.world:
            yield f"world: {outcome.test.world}, {outcome.test.isolation}"
        if outcome.test.reuse_text:
            yield f"ranks: {outcome.test.reuse_text}"
        for attempt in outcome.attempts:
            if len(outcome.attempts) > 1:
                yield f"===== attempt {attempt.attempt}: {attempt.outcome}: {_message(attempt)} ====="
            yield from (f"note: {one_line(note)}" for note in attempt.notes)
            yield from map(clean, warning_lines(attempt))
            for title, content in facts_of(attempt, FactKind.SECTION).items():
                yield _unattached(clean(f"----- {title} -----\n{content}"))
            yield from (clean(line) for line in describe_plugins(attempt))
            for rank in attempt.ranks:
                yield from self._log_excerpt(attempt, rank)
        # Last, and each on a line without other text: Jenkins reads attachments only there, relative to the
        # XML file.
        yield from self._attachments(outcome)

    def _log_excerpt(self, attempt: TestResult, rank: RankRecord) -> Iterator[str]:
        budget = self.budget.bad_log if attempt.outcome.is_bad else self.budget.good_log
        # A few words of a log explain nothing; the whole log is attached.
        if budget < 200:
            return
        excerpt = self.logs.excerpt(rank.log, head_bytes=budget // 4, tail_bytes=budget - budget // 4)
        if excerpt and str(excerpt).strip():
            yield f"----- {rank_name(rank.rank)} -----"
            yield _unattached(str(excerpt).strip("\n"))

    def _attachments(self, outcome: TestOutcome) -> Iterator[str]:
        for attempt in outcome.attempts:
            for rank in attempt.ranks:
                # Publishers of JUnit files read `[[ATTACHMENT|path]]` to the first `]]`.
                if self.logs.path(rank.log) and clean(rank.log) == rank.log and "]]" not in rank.log:
                    yield f"[[ATTACHMENT|{rank.log}]]"

    def attributes(self, outcome: TestOutcome) -> dict[str, str]:
        """Return the attributes that the test set with ``record_xml_attribute``."""
        facts = facts_of(outcome.final, FactKind.ATTRIBUTE)
        return {name: safe_text(value) for name, value in facts.items() if _ATTRIBUTE.fullmatch(name)}

    def extras(self, outcome: TestOutcome) -> Iterator[ElementTree.Element]:
        """Yield properties, then earlier attempts as Maven Surefire's elements, which consumers of reruns read."""
        facts = facts_of(outcome.final, FactKind.PROPERTY)
        if len(outcome.attempts) > 1:
            facts["disttest.attempts"] = str(len(outcome.attempts))
            facts["disttest.flaky"] = str(outcome.flaky).lower()
        if facts:
            yield _properties(
                {safe_text(n, "-"): safe_text(v, limit=self.budget.details) for n, v in facts.items()}
            )
        # Surefire names attempts before a pass flakyFailure, and attempts before a final failure
        # rerunFailure.
        prefix = "flaky" if outcome.flaky else "rerun"
        for attempt in outcome.attempts[:-1]:
            if not attempt.outcome.is_bad:
                continue
            kind = "Error" if attempt.outcome is Outcome.ERROR else "Failure"
            facts = {"message": _message(attempt), "type": how_failed(attempt)}
            element = ElementTree.Element(f"{prefix}{kind}", facts)
            trace = ElementTree.SubElement(element, "stackTrace")
            trace.text = self._body(outcome, attempt)
            yield element


def safe_text(text: str | bytes, default: str = "", *, limit: int = MAX_TEXT) -> str:
    """Return text that the package accepts: cleaned, bounded, and not empty if there is a default."""
    return shorten(clean(text), limit).strip() or (clean(default).strip() or "-" if default else "")


def _properties(facts: Mapping[str, str]) -> ElementTree.Element:
    properties = ElementTree.Element("properties")
    for name, value in facts.items():
        properties.append(ElementTree.Element("property", {"name": name, "value": value}))
    return properties


def safe_seconds(seconds: float) -> float:
    """Return a time that the package does not drop: invalid and tiny values become the shortest one."""
    return round(seconds, 3) if SHORTEST_S <= seconds < 1e9 else SHORTEST_S


def _message(result: TestResult, limit: int = 400) -> str:
    """Return a line that is never empty: the package writes a failure without message and text as a pass."""
    return one_line(result.message, limit) or str(result.outcome)


def _labels(result: TestResult) -> list[str]:
    labels = [f"phase: {result.phase}"]
    if result.cause:
        labels.append(f"cause: {result.cause}")
    if result.culprit is not None:
        labels.append(f"culprit: {rank_name(result.culprit)}")
    if result.victims:
        labels.append(f"victims: {rank_names(result.victims)}")
    return ["  ".join(labels)]


def _unattached(text: str) -> str:
    """Defuse attachment lines in a log: publishers copy the files that such lines name."""
    return text.replace("[[ATTACHMENT|", "[[ATTACHMENT |")
