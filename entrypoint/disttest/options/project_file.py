"""``[tool.disttest]`` of a pyproject.toml: its keys are the options of every run, and give way to flags and variables."""

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

FILE_OPTIONS = {option.name: option for option in PROJECT_OPTIONS if not option.secret}
"""Key -> option. Secrets do not belong into a file that is committed."""


class ProjectSettings(Frozen):
    """What a project says of its runs."""

    path: Path | None = None
    """The file; None where no file has the table."""
    texts: Mapping[str, str] = {}
    """Name of an option -> its value as the text that a flag would have; each of them makes sense."""

    def fill(self, flags: Mapping[str, Any], *, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The flags (by field name), those of the file added where neither a flag nor a variable says otherwise."""
        variables = environment() if environ is None else environ
        rows = [(FILE_OPTIONS[name], text) for name, text in self.texts.items()]
        added = {
            option.field: text
            for option, text in rows
            if not flags.get(option.field) and not variables.get(option.variable)
        }
        return {**flags, **added}


def read_project_settings(targets: Sequence[str] = (), folder: Path | None = None) -> ProjectSettings:
    """The settings for these tests: those of the nearest pyproject.toml with the table, at or above their common folder.

    Args:
        targets: paths and node ids; what is no path here does not count.
        folder: where relative paths begin, and the search where no target is a path; the current one unless given.

    Raises:
        UsageError: a file is no TOML, or has a key or a value that makes no sense; the message names both.
    """
    start = folder or Path.cwd()
    paths = [start / target.partition("::")[0] for target in targets]
    common = os.path.commonpath([path.resolve() for path in paths if path.exists()] or [start.resolve()])
    for parent in (Path(common), *Path(common).parents):
        table = read_table(parent / "pyproject.toml")
        if table is not None:
            return _read(parent / "pyproject.toml", table)
    return ProjectSettings()


def read_table(path: Path, *names: str) -> dict[str, Any] | None:
    """A table below ``[tool]`` of a file (``disttest`` unless named); None where it has none, or cannot be read.

    Raises:
        UsageError: the file is no TOML.
    """
    names = names or ("disttest",)
    if not path.is_file():  # a pipe would be waited for; pytest passes it by, too
        return None
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    if names[0] not in text:  # other people's files need not be TOML
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
    return f"there is no such setting; {hint}there are {', '.join(FILE_OPTIONS)}"


def _text(option: Option, value: object, where: str, folder: Path) -> str:
    """The value as the text that a flag would have, checked as a flag's is."""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str | int | float) for part in parts):
        raise UsageError(f"{where}: {value!r} is not {option.type.shown_form}")
    text = ",".join(str(part).lower() if isinstance(part, bool) else str(part) for part in parts)
    try:
        made = option.type.parse(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return str(folder / made) if isinstance(made, Path) else text
