"""Render a diagnosis as text, as JSON, and as a run result from which the reporters make JUnit."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

import disttest
from disttest.extras.doctor.examine import Diagnosis
from disttest.host.devices.device_findings import DeviceFinding, Grade
from disttest.model import Cause, Outcome, TestCase, TestResult
from disttest.reports.junit import render_junit
from disttest.results.events import AnyEvent, RunFinished, RunStarted, TestCollected, TestFinished
from disttest.results.fold import RunResult, fold
from disttest.results.journal import run_clock

_STYLES = {Grade.OK: "green", Grade.WARNING: "yellow", Grade.BROKEN: "bold red"}

SCHEMA_VERSION = 1
"""Version of the JSON; raised when a reader of the old version would misread the new one."""


def render_json(diagnosis: Diagnosis) -> str:
    """Render the whole diagnosis."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "disttest": disttest.__version__,
        "exit_code": int(diagnosis.exit_code),
        **msgspec.to_builtins(diagnosis),
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def print_diagnosis(diagnosis: Diagnosis, *, to_stderr: bool = False) -> None:
    """Print a table of all checks, then the failed ones with advice, then the verdict."""
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:  # a log has no width
        console = Console(stderr=to_stderr, highlight=False, width=160)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("device", "check", "", "finding"):
        table.add_column(title, overflow="fold")
    for finding in diagnosis.findings:
        grade = Text(str(finding.grade), style=_STYLES[finding.grade])
        table.add_row(Text(finding.device), Text(finding.check), grade, Text(finding.message))
    console.print(table)
    for finding in diagnosis.findings:
        if finding.grade is not Grade.OK:
            console.print(Text(render_finding(finding), style=_STYLES[finding.grade]), soft_wrap=True)
    console.print(Text(render_verdict(diagnosis)), soft_wrap=True)


def render_finding(finding: DeviceFinding) -> str:
    """Render one line: place, finding and advice."""
    advice = f" {finding.advice}" if finding.advice else ""
    return f"{finding.grade}: {finding.device}: {finding.check}: {finding.message}.{advice}"


def render_verdict(diagnosis: Diagnosis) -> str:
    """Render the last line."""
    broken = sum(finding.grade is Grade.BROKEN for finding in diagnosis.findings)
    warnings = sum(finding.grade is Grade.WARNING for finding in diagnosis.findings)
    verdict = "this machine is broken" if broken else "this machine works"
    counts = f"{len(diagnosis.findings)} checks, {broken} failed, {warnings} warnings"
    return f"{verdict}: {counts}, {diagnosis.duration_s:.1f} s"


def render_diagnosis_junit(diagnosis: Diagnosis, directory: Path) -> str:
    """Render JUnit XML with one case for each device and check."""
    return render_junit(as_run(diagnosis), directory)


def as_run(diagnosis: Diagnosis) -> RunResult:
    """Convert the diagnosis into a run with one test for each check; a broken one is an infrastructure error."""
    at_s = run_clock()()
    ended_at_s = at_s + diagnosis.duration_s
    events: list[AnyEvent] = [
        RunStarted(
            at_s=at_s,
            run_id="doctor",
            argv=("disttest", "doctor"),
            root="",
            hardware=diagnosis.machine.hardware(),
            slots=len(diagnosis.machine.gpu_slots()) or diagnosis.machine.cpus,
            disttest=disttest.__version__,
        ),
        *(TestCollected(at_s=at_s, test=_case(finding)) for finding in diagnosis.findings),
        *(TestFinished(at_s=ended_at_s, result=_result(f, at_s)) for f in diagnosis.findings),
        RunFinished(at_s=ended_at_s, exit_code=int(diagnosis.exit_code)),
    ]
    return fold(events)


def _case(finding: DeviceFinding) -> TestCase:
    return TestCase(
        nodeid=_nodeid(finding),
        slug=re.sub(r"[^a-z0-9]+", "-", _nodeid(finding).lower()).strip("-"),
        classname=f"doctor.{finding.device}",
        name=finding.check,
        file="",
        line=1,
        suite="doctor",
    )


def _nodeid(finding: DeviceFinding) -> str:
    return f"doctor::{finding.device}::{finding.check}"


def _result(finding: DeviceFinding, at_s: float) -> TestResult:
    broken = finding.grade is Grade.BROKEN
    return TestResult(
        nodeid=_nodeid(finding),
        outcome=Outcome.ERROR if broken else Outcome.PASSED,
        cause=Cause.INFRASTRUCTURE if broken else None,
        started_at_s=at_s,
        duration_s=finding.duration_s,
        message=render_finding(finding) if broken else "",
        notes=() if broken or not finding.message else (finding.message,),
    )
