"""Each plugin folder has a README.md that names its options, and files, tests and pages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from disttest.options.option import Option
from disttest.plugin_manager import plugin_manager

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = sorted(
    hooks.parent
    for ring in ("plugins", "extras")
    for hooks in ROOT.glob(f"entrypoint/disttest/{ring}/*/hooks.py")
)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_says_what_is_in_it(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    files = re.findall(r"^- `([^`]+)`:", text, re.MULTILINE)

    assert text.startswith(f"# {folder.name}\n\n")
    assert len(text.splitlines()) <= 20
    assert "hooks.py" in files
    assert [] == [name for name in files if not (folder / name).exists()]
    assert any("/tests/" in link or "/bench/" in link for link in links)
    assert any("/docs/" in link for link in links)
    assert [] == [link for link in links if not (folder / link).exists()]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_names_its_commands_and_options(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    plugin = dict(plugin_manager().all)[f"disttest.{folder.name}"]
    group = click.Group()
    if add := getattr(plugin, "disttest_addcommands", None):
        add(group=group)
    commands = [f"disttest {name}" for name, command in group.commands.items() if not command.hidden]
    options = [
        row.name if row.no_flag else row.flag
        for owner, row in plugin_manager().items("disttest_addoptions", Option)
        if owner == f"disttest.{folder.name}" and "run" in row.commands
    ]

    assert [] == [name for name in commands if f"`{name}`" not in text]
    assert [] == [option for option in options if option not in text and "and more" not in text]
