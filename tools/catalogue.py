"""Prints how much of the catalogue of behaviours the tests cover, section by section.

An id is covered when a test carries it, or accounted for when the section's file gives a reason why none does.
Ends with 1 when an id is neither, when a test carries an id that does not exist, or when an id is both.
"""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import dataclass
from pathlib import Path

from suite_index import ROOT, covered_ids, test_files

CATALOGUE = ROOT / "docs" / "catalogue"


@dataclass(frozen=True, kw_only=True)
class Section:
    """One file of the catalogue."""

    name: str
    title: str
    ids: dict[str, str]
    accounted: dict[str, str]


def read_sections(folder: Path = CATALOGUE) -> list[Section]:
    """All sections, by file name."""
    sections = []
    for path in sorted(folder.glob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        sections.append(
            Section(name=path.stem, title=data["title"], ids=data["ids"], accounted=data.get("accounted", {}))
        )
    return sections


def read_coverage() -> dict[str, list[str]]:
    """Every id that a test of the repository carries, with the tests."""
    coverage: dict[str, list[str]] = {}
    for path in test_files("suites", "tests"):
        for name, places in covered_ids(path).items():
            coverage.setdefault(name, []).extend(places)
    return coverage


def faults_of(section: Section, coverage: dict[str, list[str]]) -> list[str]:
    """What is wrong with a section, one line each."""
    faults = [
        f"{name} has neither a test nor a reason: {title}"
        for name, title in section.ids.items()
        if name not in coverage and not section.accounted.get(name)
    ]
    faults += [
        f"{name} has a reason and does not exist" for name in section.accounted if name not in section.ids
    ]
    faults += [
        f"{name} has a reason and a test as well ({coverage[name][0]}): drop one"
        for name in section.accounted
        if name in coverage
    ]
    return faults


def main() -> int:
    """Print the table and the faults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", help="sections to look at (default: all)")
    parser.add_argument("--tests", action="store_true", help="also print the tests of each id")
    arguments = parser.parse_args()
    sections, coverage = read_sections(), read_coverage()
    if unknown := set(arguments.sections) - {section.name for section in sections}:
        parser.error(
            f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in sections)}"
        )
    known = {name for section in sections for name in section.ids}
    faults = [
        f"{name} does not exist ({places[0]})" for name, places in coverage.items() if name not in known
    ]
    print(f"{'section':<18} {'ids':>5} {'tested':>7} {'reason':>7} {'open':>5}")
    for section in sections:
        if arguments.sections and section.name not in arguments.sections:
            continue
        tested = sum(name in coverage for name in section.ids)
        open_ids = [n for n in section.ids if n not in coverage and not section.accounted.get(n)]
        print(
            f"{section.name:<18} {len(section.ids):>5} {tested:>7} {len(section.accounted):>7} {len(open_ids):>5}"
        )
        faults += faults_of(section, coverage)
        if arguments.tests:
            for name in section.ids:
                print(f"  {name}: {', '.join(coverage.get(name, [])) or section.accounted.get(name, '-')}")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
