"""Rendering of the page: content that is readable without a script is rendered here, the rest is data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from disttest.plugins.html.data import choose_tests, headline_of, page_data, page_details
from disttest.reports import aggregates, past_runs
from disttest.reports.aggregates import warnings_by_section
from disttest.reports.location import Repository, locate, source_line
from disttest.reports.log_excerpts import LogFolder
from disttest.reports.past_runs import PastRun
from disttest.reports.reporter import facts_of, tables_by_section
from disttest.reports.text import clean, count, duration, one_line
from disttest.results.fold import RunResult
from disttest.results.narrative import how_failed

SCRIPTS = ("page.js", "timeline.js", "tests.js", "findings.js", "ranks.js")
MAX_CARDS = 200


def render_html(run: RunResult, results_dir: Path | None = None, *, history: Sequence[PastRun] = ()) -> str:
    """Return the page. It has excerpts of the logs in ``results_dir`` and links to them.

    Args:
        run: the run to show.
        results_dir: directory of its logs; without it they are omitted.
        history: earlier runs, for the history of each test and for the trend.
    """
    earlier = sorted(history, key=lambda other: other.started_at_s)
    groups = aggregates.failure_groups(run)
    repository = Repository.of(run)
    page = choose_tests(run)
    index = {test.test.nodeid: number for number, test in enumerate(page.tests)}
    tally = aggregates.tally(run)
    return (
        load_template()
        .render(
            run=run,
            command=shlex.join(run.argv),
            green=aggregates.is_green(run),
            verdict=aggregates.verdict(run),
            headline=aggregates.headline(run),
            headline_of=headline_of,
            started=datetime.fromtimestamp(max(0.0, run.started_at_s), UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            groups=groups[:MAX_CARDS],
            more_groups=max(0, len(groups) - MAX_CARDS),
            index=index,
            warnings=warnings_by_section(run),
            tables=tables_by_section(run, MAX_CARDS),
            max_cards=MAX_CARDS,
            repository=repository,
            left_out=len(run.tests) - len(page.tests),
            how_failed=how_failed,
            place=lambda test: locate(test, repository),
            source=lambda test: one_line(source_line(test, repository), 160),
            table=aggregates.table(run),
            tally=tally,
            columns=aggregates.columns(tally),
            facts=facts_of(run),
            slowest=aggregates.slowest(run),
            reasons=aggregates.reasons_left_out(run),
            flaky=[test for test in run.tests if test.flaky][:100],
            points=[*(past.point for past in earlier), past_runs.point(run)] if earlier else [],
            plot=plot,
            percent=past_runs.percent,
            data=_embedded(page_data(page, earlier, whole=run)),
            details=_embedded(page_details(page, LogFolder(results_dir))),
            style=Markup(_asset("page.css")),  # noqa: S704 - a file of this package
            script=Markup("\n".join(_asset(name) for name in SCRIPTS)),  # noqa: S704 - files of this package
        )
        .strip()
        + "\n"
    )


@cache
def load_template() -> jinja2.Template:
    """Compile the page's template, which takes most of the time of a small page."""
    # Compiled in each run (50 ms, while the tests run): cached byte code of jinja would have to be invalidated by
    # hand whenever jinja or these options change.
    # StrictUndefined: a misspelt name in the template fails the tests of the report instead of showing
    # nothing.
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"line": one_line, "clean": clean, "duration": duration}
    environment.globals |= {"count": count, "digest": aggregates}
    return environment.from_string(_asset("page.html.j2"))


@cache
def _asset(name: str) -> str:
    return files("disttest.plugins.html").joinpath(name).read_text(encoding="utf-8")


def _embedded(data: Any) -> Markup:
    """Encode data as JSON that is safe inside a script element: it can neither end the element nor begin a comment."""
    text = msgspec.json.encode(data).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


def plot(values: Sequence[float], *, width: int = 600, height: int = 120) -> str:
    """Return the points of an SVG polyline for a curve from zero to its largest value."""
    top = max(values, default=0.0) or 1.0
    step = width / max(1, len(values) - 1)
    return " ".join(
        f"{number * step:.1f},{height - value / top * height:.1f}" for number, value in enumerate(values)
    )
