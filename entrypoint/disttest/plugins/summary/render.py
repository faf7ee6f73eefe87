"""``summary.md``: the run as Markdown, shortened step by step until the page of a CI service accepts it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from disttest.model import RankRecord, TestResult, rank_name
from disttest.plugins.costs.timeline import build_timeline, render_lanes
from disttest.reports import aggregates
from disttest.reports.aggregates import FailureGroup, Tally, Warned, warnings_by_section
from disttest.reports.log_excerpts import LogFolder
from disttest.reports.markdown import cell, code, code_cell, code_in_html, escape, exact_code, fenced, in_html
from disttest.reports.reporter import facts_of, tables_by_section
from disttest.reports.text import clean, count, duration, one_line, shorten
from disttest.results.findings import describe_plugins
from disttest.results.fold import RunResult, TestOutcome
from disttest.results.narrative import how_ended, how_failed

MAX_BYTES = 1024 * 1024 - 16 * 1024
"""A CI service drops a summary larger than 1 MiB as a whole; some room is left for text that others append."""

LOG_TAILS = 4
"""Number of ranks whose log is shown, the culprit's first; the others are links."""


@dataclass(frozen=True, kw_only=True)
class _Detail:
    """Amount of detail; each step of shortening uses the next smaller one."""

    failures: int
    details: int
    """Characters of a failure's text."""
    log: int
    """Bytes of each rank's log."""
    listed: int
    """Lines of a list: slowest tests, skip reasons, tests in a group."""
    table: int = 500
    cut: str = ""
    """Description of the parts that are left out."""


STEPS = (
    _Detail(failures=200, details=20_000, log=4_000, listed=20),
    _Detail(failures=200, details=8_000, log=1_000, listed=20, cut="long failure texts and log tails"),
    _Detail(failures=200, details=2_000, log=0, listed=10, cut="most failure texts and all log tails"),
    _Detail(failures=100, details=500, log=0, listed=10, cut="nearly all failure texts, all log tails"),
    _Detail(failures=50, details=0, log=0, listed=5, table=100, cut="all failure texts and log tails"),
    _Detail(failures=10, details=0, log=0, listed=3, table=20, cut="all but the first failures"),
)


def render_summary(
    run: RunResult, results_dir: Path | None = None, *, max_bytes: int = MAX_BYTES, links: bool = True
) -> str:
    """Return the summary as Markdown. Logs are excerpted from ``results_dir``; without it they are left out.

    Links to logs are relative to the results directory. Without ``links`` they are plain paths, for a place without the
    logs: the page of a CI service.

    The text is never longer than ``max_bytes``; its end states what was cut.
    """
    logs = LogFolder(results_dir)
    for step in STEPS:
        text = _Summary(run, logs, step, links=links).render()
        if len(text.encode()) <= max_bytes:
            return text
    # The smallest step fits unless names are extremely long.
    # The cut may fall into the middle of a character.
    return text.encode()[:max_bytes].decode(errors="ignore")


class _Summary:
    """One rendering of a run at one level of detail."""

    def __init__(self, run: RunResult, logs: LogFolder, detail: _Detail, *, links: bool) -> None:
        self.run = run
        self.logs = logs
        self.detail = detail
        self.links = links

    def render(self) -> str:
        sections = (
            self.head(),
            self.failures(),
            self.flaky(),
            self.findings(),
            self.plugin_tables(),
            self.table(),
            self.facts(),
            self.timeline(),
            self.lists(),
            self.foot(),
        )
        return "\n".join(line for section in sections for line in section).rstrip("\n") + "\n"

    def head(self) -> Iterator[str]:
        icon = "✅" if aggregates.is_green(self.run) else "❌"
        yield f"## {icon} disttest: {aggregates.verdict(self.run)}"
        yield ""
        yield f"**{aggregates.headline(self.run)}**" + (f" · {code(self.argv())}" if self.run.argv else "")
        yield ""
        if self.run.reason:
            yield f"The run is red: {escape(one_line(self.run.reason))}"
            yield ""

    def argv(self) -> str:
        return one_line(shlex.join(self.run.argv), 200)

    def failures(self) -> Iterator[str]:
        groups = aggregates.failure_groups(self.run)
        if not groups and not self.run.collection_errors:
            return
        yield "### Failures"
        yield ""
        for error in self.run.collection_errors[: self.detail.failures]:
            yield from self.collection_error(error.nodeid, error.message)
        for group in groups[: self.detail.failures]:
            yield from self.failure(group)
        if len(groups) > self.detail.failures:
            yield f"… and {count(len(groups) - self.detail.failures, 'more failure')}, all in `junit.xml`."
            yield ""

    def collection_error(self, nodeid: str, message: str) -> Iterator[str]:
        last = message.strip().rpartition("\n")[2]
        body = [*self.block(message)]
        title = f"{code_in_html(nodeid)} could not be collected: {in_html(one_line(last))}"
        yield from _collapsible(title, body)

    def failure(self, group: FailureGroup) -> Iterator[str]:
        test = group.first
        what = (
            code_in_html(test.test.nodeid)
            if len(group.tests) == 1
            else f"<b>{count(len(group.tests), 'test')}</b>"
        )
        title = f"{in_html(how_failed(test.final))} · {what}<br>{in_html(group.message)}"
        yield from _collapsible(title, [*self.failure_body(group)])

    def failure_body(self, group: FailureGroup) -> Iterator[str]:
        test, result = group.first, group.first.final
        if len(group.tests) > 1:
            yield from (f"- {code(member.test.nodeid)}" for member in group.tests[: self.detail.listed])
            if len(group.tests) > self.detail.listed:
                yield f"- … and {count(len(group.tests) - self.detail.listed, 'more test')}"
            yield ""
        findings = [found] if (found := "\n".join(describe_plugins(result))) else []
        if aggregates.who(result):
            yield f"{escape(aggregates.who(result))}, in {escape(result.phase)}."
            yield ""
        yield from (f"- attempt {a.attempt}: {escape(aggregates.finding(a))}" for a in test.attempts[:-1])
        if len(test.attempts) > 1:
            yield ""
        yield from self.block("\n\n".join([*aggregates.evidence(result), *findings]))
        yield from self.ranks(result)
        yield f"Repeat: {exact_code(group.repeat)}"
        for word, line in group.further.items():
            yield ""
            yield f"{escape(word.capitalize())}: {exact_code(line)}"
        yield ""

    def ranks(self, result: TestResult) -> Iterator[str]:
        if not result.ranks:
            return
        yield "| rank | ended | phase | log | says |"
        yield "|---:|---|---|---|---|"
        for rank in result.ranks[:64]:
            ended = how_ended(rank)
            says = cell(one_line(rank.message, 200))
            cells = (
                rank_name(rank.rank).removeprefix("rank "),
                ended,
                cell(rank.phase),
                self.log_link(rank),
                says,
            )
            yield f"| {' | '.join(cells)} |"
        yield ""
        first = sorted(result.ranks, key=lambda rank: rank.rank != result.culprit)
        for rank in first[:LOG_TAILS]:
            yield from self.log_tail(rank)

    def log_link(self, rank: RankRecord) -> str:
        if not self.logs.path(rank.log):
            return "missing" if rank.log else ""
        if not self.links:
            return code_cell(rank.log)
        return f"[{PurePosixPath(rank.log).name}]({quote(rank.log)})"

    def log_tail(self, rank: RankRecord) -> Iterator[str]:
        if not self.detail.log:
            return
        if told := self.logs.own_output(rank.log, self.detail.log):
            yield f"Log of {rank_name(rank.rank)}, its end:"
            yield ""
            yield from fenced(told)

    def block(self, text: str) -> Iterator[str]:
        if self.detail.details and text.strip():
            yield from fenced(shorten(clean(text), self.detail.details).strip("\n"))

    def flaky(self) -> Iterator[str]:
        flaky = [test for test in self.run.tests if test.flaky]
        if not flaky:
            return
        yield "### Flaky"
        yield ""
        for test in flaky[: self.detail.listed * 5]:
            first = test.first_bad
            yield (
                f"- {code(test.test.nodeid)} passed at attempt {test.final.attempt}; "
                f"attempt {first.attempt}: {escape(aggregates.finding(first))}"
            )
        if len(flaky) > self.detail.listed * 5:
            yield f"- … and {count(len(flaky) - self.detail.listed * 5, 'more flaky test')}"
        yield ""

    def findings(self) -> Iterator[str]:
        for section, warned in warnings_by_section(self.run):
            yield from self._findings(section, warned)

    def _findings(self, section: str, warned: Sequence[Warned]) -> Iterator[str]:
        yield f"### {escape(one_line(section).capitalize())}"
        yield ""
        for each in warned[: self.detail.listed * 5]:
            finding = each.finding
            title = (
                f"{in_html(each.title)} · {code_in_html(each.whose)}<br>{in_html(one_line(finding.message))}"
            )
            words = (escape(one_line(text)) for text in (finding.effect, f"What to do: {finding.advice}"))
            yield from _collapsible(title, [line for text in words for line in (text, "")])
        if len(warned) > self.detail.listed * 5:
            yield f"… and {count(len(warned) - self.detail.listed * 5, 'more finding')}, all in `results.json`."
            yield ""

    def plugin_tables(self) -> Iterator[str]:
        for section, tables in tables_by_section(self.run, self.detail.listed):
            for table in tables:
                title = f"{section.capitalize()}: {table.title}"
                yield from _collapsible(escape(one_line(title)), [*fenced("\n".join(table.lines()))])

    def table(self) -> Iterator[str]:
        rows = aggregates.table(self.run)
        if not rows:
            return
        yield "### Results"
        yield ""
        total = aggregates.tally(self.run)
        kinds = aggregates.columns(total)
        with_gpus = bool(total.gpu_s)
        titles = [*kinds.values(), "time", *["GPU-minutes"] * with_gpus]
        yield f"| suite | world | {' | '.join(titles)} |"
        yield f"|---|---|{'---:|' * len(titles)}"
        for row in rows[: self.detail.table]:
            yield _table_line(cell(row.suite), cell(row.shape), row.tally, kinds, with_gpus=with_gpus)
        if len(rows) > self.detail.table:
            yield f"| … {count(len(rows) - self.detail.table, 'more row')} |{' |' * (1 + len(titles))}"
        if len(rows) > 1:
            yield _table_line("**all**", "", total, kinds, with_gpus=with_gpus)
        yield ""

    def facts(self) -> Iterator[str]:
        for each in facts_of(self.run):
            yield f"### {escape(each.section.capitalize())}"
            yield ""
            yield from (f"- {escape(name)}: {escape(fact)}" for name, fact in each.facts)
            yield ""

    def timeline(self) -> Iterator[str]:
        timeline = build_timeline(self.run)
        if timeline.slots and self.detail.log:
            yield from _collapsible("Timeline", [*fenced(render_lanes(timeline, width=80))])

    def lists(self) -> Iterator[str]:
        slow = aggregates.slowest(self.run, self.detail.listed)
        if slow:
            lines = [
                f"| {duration(test.final.duration_s)} | {code_cell(test.test.nodeid)} |" for test in slow
            ]
            yield from _collapsible("Slowest tests", ["| time | test |", "|---:|---|", *lines, ""])
        for why in aggregates.reasons_left_out(self.run):
            lines = [
                f"| {number:,} | {cell(reason)} |" for reason, number in why.counts[: self.detail.listed]
            ]
            if len(why.counts) > self.detail.listed:
                lines.append(f"| … | {count(len(why.counts) - self.detail.listed, 'more reason')} |")
            title = f"{why.title.capitalize()}: {count(why.tests, 'test')}, by reason"
            yield from _collapsible(title, ["| tests | reason |", "|---:|---|", *lines, ""])

        yield from self._named(
            "False greens avoided: torch's own rules would have passed", self.run.false_greens
        )
        yield from self._named("Tests that torch passes vacuously here:", self.run.vacuous)

    def _named(self, title: str, tests: Sequence[TestOutcome]) -> Iterator[str]:
        if tests:
            most = self.detail.listed * 5
            lines = [f"- {code(test.test.nodeid)}" for test in tests[:most]]
            more = [f"- … and {count(len(tests) - most, 'more test')}"] if len(tests) > most else []
            yield from _collapsible(f"{title} {count(len(tests), 'test')}", [*lines, *more, ""])

    def foot(self) -> Iterator[str]:
        if self.run.notes:
            every = dict.fromkeys(map(one_line, self.run.notes))
            notes = [f"- {escape(note)}" for note in [*every][: self.detail.listed * 5]]
            if len(every) > len(notes):
                notes.append(f"- … and {count(len(every) - len(notes), 'more note')}")
            yield from _collapsible(count(len(every), "note"), [*notes, ""])
        hardware = self.run.hardware
        facts = [
            f"disttest {self.run.disttest}" if self.run.disttest else "",
            f"torch {hardware.torch}" if hardware.torch else "",
            f"Python {hardware.python}" if hardware.python else "",
            f"{hardware.cpus} CPUs" if hardware.cpus else "",
            ", ".join(hardware.gpus) or "no GPU",
            f"driver {hardware.driver}" if hardware.driver else "",
            f"CUDA up to {hardware.cuda}" if hardware.cuda else "",
        ]
        yield f"<sub>{escape(' · '.join(one_line(fact) for fact in facts if fact))}</sub>"
        if self.detail.cut:
            yield ""
            yield f"<sub>Shortened to fit: {self.detail.cut} left out; see `junit.xml` and `logs/`.</sub>"


def _table_line(suite: str, shape: str, tally: Tally, kinds: Iterable[str], *, with_gpus: bool) -> str:
    numbers = [tally.in_column(kind) for kind in kinds]
    cells = [suite, shape, *(f"{number:,}" if number else "" for number in numbers), duration(tally.time_s)]
    cells += [f"{tally.gpu_s / 60:.1f}" if tally.gpu_s else ""] * with_gpus
    return f"| {' | '.join(cells)} |"


def _collapsible(title: str, body: list[str]) -> Iterator[str]:
    yield "<details>"
    yield f"<summary>{title}</summary>"
    yield ""
    yield from body
    yield "</details>"
    yield ""
