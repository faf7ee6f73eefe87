"""A page of the docs that a script makes: written, or with --check compared with what stands there."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from suite_index import ROOT


def write_or_check(name: str, lines: Iterable[str], description: str | None) -> int:
    """Write the page, or compare it, as the command line says.

    Args:
        name: of the page below ``docs/``.
        lines: that it should have.
        description: of the script, for its help.

    Returns:
        The exit code: 1 if the page was compared and is out of date.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="end with 1 if the page is out of date")
    page = ROOT / "docs" / name
    text = "\n".join(lines).rstrip("\n") + "\n"
    if not parser.parse_args().check:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.exists() and page.read_text(encoding="utf-8") == text:
        print(f"docs/{name} is up to date")
        return 0
    print(f"docs/{name} is out of date: run `make docs`")
    return 1


def write_section(page: Path, begin: str, end: str, lines: Iterable[str]) -> None:
    """Put lines into a page, in the place of those between two markers, each a line of its own.

    Raises:
        ValueError: the page has not both.
    """
    before, _, rest = page.read_text(encoding="utf-8").partition(f"{begin}\n")
    _, found, after = rest.partition(f"{end}\n")
    if not found:
        raise ValueError(f"{page} has no lines {begin} and {end}")
    page.write_text("\n".join([before + begin, *lines, end]) + "\n" + after, encoding="utf-8")


def cell(text: str) -> str:
    """A text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
