"""``[tool.disttest]`` of a pyproject.toml: its keys are the options of every run. Flags and variables override them."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttest.errors import UsageError
from disttest.model import Frozen
from disttest.options.environment import environment
from disttest.options.option import Option
from disttest.options.registry import PROJECT_OPTIONS, RUN_OPTIONS, replacement_of

# A second set of options would drift: the keys are the options' names, and their values are checked as flags are.
# The command reads the file once and passes the values on as flags, so that no other process can find another file.
FILE_OPTIONS = {option.name: option for option in PROJECT_OPTIONS if not option.secret}
"""Options by key. Secrets do not belong into a committed file."""


class ProjectSettings(Frozen):
    """A project's settings of its runs."""

    path: Path | None = None
    """The file; None if no file has the table."""
    texts: Mapping[str, str] = {}
    """Name of an option, mapped to its valid value, in the text form of the flag."""

    def fill(self, flags: Mapping[str, Any], *, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the flags by field name, completed by the file's settings that flags and variables leave open."""
        variables = environment() if environ is None else environ
        rows = [(FILE_OPTIONS[name], text) for name, text in self.texts.items()]
        added = {
            option.field: text
            for option, text in rows
            if not flags.get(option.field) and not variables.get(option.variable)
        }
        return {**flags, **added}


def read_project_settings(targets: Sequence[str] = (), folder: Path | None = None) -> ProjectSettings:
    """Read the settings for tests: those of the nearest pyproject.toml with the table, at or above their common folder.

    Args:
        targets: paths and node ids; names that are no paths here are ignored.
        folder: base of relative paths, and start of the search if no target is a path; the current folder unless given.

    Raises:
        UsageError: a file is not valid TOML, or has an invalid key or value; the message names both.
    """
    start = folder or Path.cwd()
    paths = [start / target.partition("::")[0] for target in targets]
    common = os.path.commonpath([path.resolve() for path in paths if path.exists()] or [start.resolve()])
    for parent in (Path(common), *Path(common).parents):
        table = read_table(parent / "pyproject.toml")
        if table is not None:
            return _read(parent / "pyproject.toml", table)
    return ProjectSettings()


def chosen_path(option: Option, given: object, targets: Sequence[str] = ()) -> Path | None:
    """Return the path that a flag, the variable or the project's file names, in this order; None if none does.

    Args:
        option: option whose value is a path.
        given: value of its flag.
        targets: tests of the project, as for :func:`read_project_settings`.
    """
    named: Any = (
        given or environment().get(option.variable) or read_project_settings(targets).texts.get(option.name)
    )
    return Path(named) if named else None


def read_table(path: Path, *names: str) -> dict[str, Any] | None:
    """Read a table below ``[tool]`` of a file (``disttest`` unless named); None if it is missing or unreadable.

    Raises:
        UsageError: the file is not valid TOML.
    """
    names = names or ("disttest",)
    if not path.is_file():  # opening a pipe would block; pytest ignores it, too
        return None
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    if names[0] not in text:  # a file without the table need not be valid TOML
        return None
    try:
        table: Any = tomllib.loads(text).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    for name in names:
        table = table.get(name) if isinstance(table, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{path}: tool.{'.'.join(names)} is not a table")
    return table


def _read(path: Path, table: Mapping[str, Any]) -> ProjectSettings:
    texts = {}
    for key, value in table.items():
        where = f"{path}: [tool.disttest] {key}"
        option = FILE_OPTIONS.get(key)
        # An unknown key is an error: a misspelt time limit would otherwise be no limit.
        if option is None:
            raise UsageError(f"{where}: {_not_a_setting(key)}")
        texts[key] = _text(option, value, where, path.parent)
    return ProjectSettings(path=path, texts=texts)


def _not_a_setting(key: str) -> str:
    secret = next((option for option in RUN_OPTIONS if option.secret and option.name == key), None)
    if secret is not None:
        return f"secrets do not belong into a file; use the variable {secret.variable}"
    if moved := replacement_of(key):
        return moved.replace("--", "")
    near = difflib.get_close_matches(key, FILE_OPTIONS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown setting; {hint}known settings: {', '.join(FILE_OPTIONS)}"


def _text(option: Option, value: object, where: str, folder: Path) -> str:
    """Return the value in the text form of the flag, checked as a flag."""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str | int | float) for part in parts):
        raise UsageError(f"{where}: {value!r} is not {option.type.shown_form}")
    text = ",".join(str(part).lower() if isinstance(part, bool) else str(part) for part in parts)
    try:
        made = option.type.parse(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    # A path in the file is relative to the file; a path of a flag is relative to the working directory.
    return str(folder / made) if isinstance(made, Path) else text
