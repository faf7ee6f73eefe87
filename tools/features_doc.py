"""Writes docs/features.md from the built-in plugins; with --check, only says whether it is up to date."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click
from generated_page import cell, write_or_check
from suite_index import ROOT

from disttest.options.option import Option
from disttest.plugin_manager import plugin_manager

HEAD = """# Features, and how to leave one out

Made by `make docs` from the code; do not edit.

Each feature beyond the core is a plugin in one folder of the source. `-p no:NAME` leaves it out of a run, with its options and
commands: `disttest run ddp -p no:disttest.deadlock`. Plugins that you [write](write-a-plugin.md) and install work likewise."""
RINGS = {
    "plugins": "\n## On by default\n",
    "extras": "\n## When you ask for them\n",
}
TABLE = "| name for `-p no:` | feature | commands | options of `run` |\n|---|---|---|---|"


def main() -> int:
    """Write the page, or compare it."""
    return write_or_check("features.md", _page(), __doc__)


def _page() -> Iterator[str]:
    yield HEAD
    plugins = dict(plugin_manager().all)
    options = plugin_manager().items("disttest_addoptions", Option)
    for ring, title in RINGS.items():
        yield title
        yield TABLE
        for folder in sorted(path.parent for path in _package(ring).glob("*/hooks.py")):
            name = f"disttest.{folder.name}"
            flags = [
                f"`{row.flag}`"
                for owner, row in options
                if owner == name and "run" in row.commands and not (row.no_flag or row.hidden)
            ]
            commands = [f"`{command}`" for command in _commands(plugins[name])]
            yield f"| `{name}` | {_what(folder)} | {', '.join(commands)} | {', '.join(flags)} |"


def _package(ring: str) -> Path:
    return ROOT / "entrypoint" / "disttest" / ring


def _commands(plugin: object) -> list[str]:
    """The commands that a plugin shows in the help of ``disttest``."""
    add = getattr(plugin, "disttest_addcommands", None)
    if add is None:
        return []
    group = click.Group()
    add(group=group)
    return [name for name, command in group.commands.items() if not command.hidden]


def _what(folder: Path) -> str:
    """The first line of the package's docstring."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return cell(text.partition("\n\n")[0].replace("``", "`"))


if __name__ == "__main__":
    raise SystemExit(main())
