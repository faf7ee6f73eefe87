"""Whether a parent is still what a new process would be: its environment, its interpreter, and the files that it has loaded.

A variable counts unless it is known that nothing reads it while torch, pytest and the plugin are imported: better a parent
too many than a run that is not what it says. What a parent has not loaded is loaded by each run, and cannot be old.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_READ_BY_EACH_RUN = ("DISTTEST_", "PYTEST_", "GITHUB_", "RUNNER_", "_DISTTEST_")
"""Beginnings of names that only the command and pytest read, when a run starts."""
_OF_TERMINALS = (
    *(
        "SSH_",
        "TMUX",
        "VTE_",
        "GNOME_TERMINAL_",
        "KITTY_",
        "WEZTERM_",
        "ALACRITTY_",
        "KONSOLE_",
        "ITERM_",
        "VSCODE_",
    ),
    *("TERM_", "XDG_SESSION_", "HIST", "LESS"),
)
"""The same of a shell and its terminal."""
_NAMES_OF_TERMINALS = frozenset(
    {
        *(
            "_",
            "CLICOLOR",
            "COLORTERM",
            "COLUMNS",
            "EDITOR",
            "FORCE_COLOR",
            "INVOCATION_ID",
            "JOURNAL_STREAM",
        ),
        *(
            "LINES",
            "LS_COLORS",
            "NO_COLOR",
            "OLDPWD",
            "PAGER",
            "PS1",
            "PWD",
            "SHLVL",
            "STY",
            "SYSTEMD_EXEC_PID",
        ),
        *("TERM", "VIRTUAL_ENV_PROMPT", "VISUAL", "WINDOW", "WINDOWID"),
    }
)


def variables_that_matter(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a parent must have been started with."""
    passing = (*_READ_BY_EACH_RUN, *_OF_TERMINALS)
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(passing) and name not in _NAMES_OF_TERMINALS
    }


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Names of the variables that differ; values are nobody's business."""
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


class Loaded:
    """The files that this process has loaded, as they are now."""

    def __init__(self) -> None:
        paths = {file for _, file in _module_files()} | {sys.executable, *_configuration()}
        self._facts = {path: _facts(path) for path in paths}
        self._origins = {name: _entry_of(file) for name, file in _module_files() if "." not in name}
        self._known = set(self._before_loaded())

    def changed(self) -> str:
        """A file that is not what was loaded any more, or would be loaded in its place; empty where there is none."""
        gone = (path for path, before in self._facts.items() if _facts(path) != before)
        return next(gone, "") or next((path for path in self._before_loaded() if path not in self._known), "")

    def _before_loaded(self) -> Iterator[str]:
        """Modules in folders that Python looks into before the one that a module of that name was loaded from."""
        for position, folder in enumerate(sys.path):
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    later = self._origins.get(entry.name.partition(".")[0], -1) > position
                    if later and _is_module(entry):
                        yield entry.path


def foreign_modules(folder: Path, own: Sequence[Path]) -> list[str]:
    """Loaded modules that lie below a folder, but below none of our own: they would be the user's."""
    return [name for name, file in _module_files() if is_foreign(Path(file), folder, own)]


def is_foreign(file: Path, folder: Path, own: Sequence[Path]) -> bool:
    """Whether a file lies below a folder, but below none of our own."""
    return file.is_relative_to(folder) and not any(file.is_relative_to(ours) for ours in own)


def _module_files() -> list[tuple[str, str]]:
    """Name and file of each loaded module that has one."""
    # A list first: reading a lazy module's attributes may import others.
    found = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    return [(name, file) for name, file in found if isinstance(file, str)]


def _configuration() -> list[str]:
    """Files that say where Python finds modules."""
    folders = [Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    return [
        str(Path(sys.prefix) / "pyvenv.cfg"),
        *(str(path) for folder in folders for path in folder.glob("*.pth")),
    ]


def _facts(path: str) -> tuple[int, ...] | None:
    with contextlib.suppress(OSError):
        facts = os.stat(path)  # noqa: PTH116 - two thousand of them, before each run
        return facts.st_mtime_ns, facts.st_size, facts.st_ino
    return None


def _entry_of(file: str) -> int:
    """The position on ``sys.path`` from which a module of the top level comes; -1 where it comes from elsewhere."""
    path = Path(file)
    folder = path.parent.parent if path.name.startswith("__init__.") else path.parent
    return sys.path.index(str(folder)) if str(folder) in sys.path else -1


def _is_module(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith((".py", ".so")) or Path(entry.path, "__init__.py").exists()
