"""Command ``disttest init``: write a first test, settings and a workflow into a project; keep existing files."""

from __future__ import annotations

import contextlib
import os
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.errors import UsageError
from disttest.model import Frozen
from disttest.options.project_file import read_table

PROJECT = Path("pyproject.toml")
WORKFLOW = Path(".github/workflows/distributed-tests.yml")
_TEST_EXTRAS = ("test", "tests", "testing", "dev")
"""Usual names of the extra with the requirements of tests."""


class NewFile(Frozen):
    """A file to write."""

    path: Path
    """Path relative to the project."""
    text: str
    meaning: str
    """Purpose of the file, and the next step."""
    appended: bool = False
    """Whether the text is appended to an existing file."""


@serves(Purpose.SETUP)
@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path, exists=True, file_okay=False))
def init(folder: Path) -> None:
    """Write a first test, settings and a workflow into the project in FOLDER; existing files stay unchanged."""
    _check_place(folder, PROJECT)  # a pipe in its place would block a reader
    files = plan_files(folder)
    for file in files:
        _check_place(folder, file.path)
    for file in files:
        if _write(folder, file):
            click.echo(f"wrote {folder / file.path}: {file.meaning}")
        else:
            click.echo(f"kept {folder / file.path}: it is there already")


def _check_place(folder: Path, path: Path) -> None:
    """Refuse a path at which no file can be, before the first file is written.

    Raises:
        UsageError: something else is there, or above it.
    """
    for above in list(path.parents)[:-1]:
        if (there := folder / above).exists() and not there.is_dir():
            raise UsageError(f"{there} is not a folder, and {path} belongs into it: move it away")
    if os.path.lexists(there := folder / path) and not there.is_file():
        raise UsageError(f"{there} is not a file: move it away")


def plan_files(folder: Path) -> tuple[NewFile, ...]:
    """Plan the files for a project.

    Raises:
        UsageError: its pyproject.toml is not valid TOML.
    """
    _check_toml(folder / PROJECT)
    tests = _tests_folder(folder)
    test = tests / "test_ranks.py"
    return (
        NewFile(
            path=test,
            text=_template("test_ranks.py.txt", path=test.as_posix()),
            meaning=f"a test with 2 and with 4 ranks; try it: disttest run {test.as_posix()}",
        ),
        NewFile(
            path=PROJECT,
            text=_template("settings.toml"),
            meaning="a time limit for each test; all settings: disttest config",
            appended=read_table(folder / PROJECT) is None,
        ),
        NewFile(
            path=WORKFLOW,
            text=_template("workflow.yml", tests=tests.as_posix(), project=_project_line(folder)),
            meaning="runs the tests on GitHub; put the account that hosts disttest in the place of `org`, and commit it",
        ),
    )


def _check_toml(path: Path) -> None:
    if not path.is_file():
        return
    try:
        tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read as TOML, and settings would be added to it: {error}"
        ) from None


def _project_line(folder: Path) -> str:
    """The input of the action that installs the project with the extra for its tests; empty if it is no package."""
    tables: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        tables = tomllib.loads((folder / PROJECT).read_text(encoding="utf-8"))
    if not {"project", "build-system"} & tables.keys() and not (folder / "setup.py").exists():
        return ""
    optional = tables.get("project", {}).get("optional-dependencies", {})
    extra = next((name for name in _TEST_EXTRAS if name in optional), "")
    word = f"'.[{extra}]'" if extra else "."
    return f"          project: {word} # installed into the image first, with its requirements; target: full has a compiler\n"


def _tests_folder(folder: Path) -> Path:
    """Return the folder in which pytest looks for tests, below the project; ``tests`` by default."""
    named: Any = read_table(folder / PROJECT, "pytest", "ini_options") or {}
    paths = named.get("testpaths", [])
    words = paths.split() if isinstance(paths, str) else paths if isinstance(paths, list) else []
    path = Path(*[word for word in words[:1] if isinstance(word, str)] or ["tests"])
    # A testpaths such as ../tests leads out of the project, where init writes nothing.
    return path if (folder / path).resolve().is_relative_to(folder.resolve()) else Path("tests")


def _template(name: str, **values: str) -> str:
    text = (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def _write(folder: Path, file: NewFile) -> bool:
    path = folder / file.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            # Mode x decides whether the file exists: one that appears meanwhile is kept.
            path.open("x", encoding="utf-8").close()
            path.write_text(file.text, encoding="utf-8")
            return True
        if not file.appended:
            return False
        with path.open("a", encoding="utf-8") as known:
            # The existing text may end without a line break.
            known.write(f"\n{file.text}")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return True
