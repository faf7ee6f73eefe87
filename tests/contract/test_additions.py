"""Additions are complete: a reporter, an option, a doctor check and a finding have their page; messages name what is missing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import disttest.plugins.gpus.device_findings as machine_checks
from disttest.options.option import Option
from disttest.options.registry import OPTIONS, RUN_OPTIONS
from disttest.options.run import RunOptions
from disttest.plugin_manager import plugin_manager
from disttest.plugins.gpus.machine_advice import MACHINE_ADVICE
from disttest.reports.write import reporters

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def missing_of_reporters() -> Iterator[str]:
    for name, each in reporters().items():
        if each.file_name not in page("reports.md"):
            yield f"reporter {name}: add {each.file_name} to the list at the top of docs/reports.md"


def missing_of_options() -> Iterator[str]:
    of_plugins = [option for _, option in plugin_manager().items("disttest_addoptions", Option)]
    for option in RUN_OPTIONS:
        if option not in of_plugins and option.field not in RunOptions.__struct_fields__:
            yield f"option {option.name}: add the field {option.field} to RunOptions (options/run.py)"
    for option in OPTIONS:
        shown = option.name if option.no_flag else option.flag
        if not option.hidden and shown not in page("command.md"):
            yield f"option {option.name}: run `make docs`, docs/command.md does not have it"


def missing_of_checks() -> Iterator[str]:
    titles = set(re.findall(r"^### ([\w-]+)$", page("errors.md"), re.MULTILINE))
    for known in MACHINE_ADVICE.slugs:
        if known not in titles:
            yield f"advice {known}: add a section `### {known}` to the messages.md of its plugin"
    source = inspect.getsource(machine_checks)
    for name in re.findall(
        r"^def (_\w+)\(\w+: (?:GpuMachine|Gpu)\b.*\) -> DeviceFinding:", source, re.MULTILINE
    ):
        if source.count(name) < 2:
            yield f"doctor check {name}: add it to _MACHINE_CHECKS or _GPU_CHECKS (plugins/gpus/device_findings.py)"


def test_a_reporter_has_its_line_on_the_page() -> None:
    assert [] == [*missing_of_reporters()]


def test_an_option_has_its_field_and_its_row() -> None:
    assert [] == [*missing_of_options()]


def test_a_check_and_its_finding_are_registered_and_explained() -> None:
    assert [] == [*missing_of_checks()]
