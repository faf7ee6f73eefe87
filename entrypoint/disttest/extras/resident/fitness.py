"""Check that a parent equals a new process: its environment, its interpreter and the files that it has loaded.

A variable counts unless it is known that nothing reads it while torch, pytest and the plugin are imported: one parent
too many is better than a run in the wrong environment. Each run loads the rest afresh, so that cannot be outdated.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_READ_BY_EACH_RUN = ("DISTTEST_", "PYTEST_", "GITHUB_", "RUNNER_", "_DISTTEST_")
"""Prefixes of variables that only the command and pytest read, when a run starts."""
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
"""Prefixes of variables of a shell and its terminal."""
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
    """Return the part of an environment that a parent must have been started with."""
    passing = (*_READ_BY_EACH_RUN, *_OF_TERMINALS)
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(passing) and name not in _NAMES_OF_TERMINALS
    }


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that differ; values stay out, since they may be secret."""
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


class Loaded:
    """The files that this process has loaded, in their state at that time."""

    def __init__(self) -> None:
        # Every loaded file is compared: versions of packages do not reveal an edited file. 1,600 stat calls take 10
        # ms of CPU.
        paths = {file for _, file in _module_files()} | {sys.executable, *_configuration()}
        self._facts = {path: _facts(path) for path in paths}
        # Top-level modules only: Python looks for the others in the folder of their package.
        self._origins = {name: _entry_of(file) for name, file in _module_files() if "." not in name}
        self._known = set(self._before_loaded())

    def changed(self) -> str:
        """Return a file that has changed, or a new one that would be loaded in its place; empty if none."""
        gone = (path for path, before in self._facts.items() if _facts(path) != before)
        return next(gone, "") or next((path for path in self._before_loaded() if path not in self._known), "")

    def _before_loaded(self) -> Iterator[str]:
        """Yield modules in folders that Python searches before the one that a module of that name was loaded from."""
        for position, folder in enumerate(sys.path):
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    later = self._origins.get(entry.name.partition(".")[0], -1) > position
                    if later and _is_module(entry):
                        yield entry.path


def foreign_modules(folder: Path, own: Sequence[Path]) -> list[str]:
    """Return the loaded modules below a folder that are not disttest's: they would be the user's."""
    return [name for name, file in _module_files() if is_foreign(Path(file), folder, own)]


def is_foreign(file: Path, folder: Path, own: Sequence[Path]) -> bool:
    """Whether a file is below a folder, but below none of disttest's own folders."""
    return file.is_relative_to(folder) and not any(file.is_relative_to(ours) for ours in own)


def _module_files() -> list[tuple[str, str]]:
    """Return name and file of each loaded module that has a file."""
    # Copied first: reading an attribute of a lazy module may import others.
    found = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    return [(name, file) for name, file in found if isinstance(file, str)]


def _configuration() -> list[str]:
    """List the files that define where Python finds modules."""
    folders = [Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    return [
        str(Path(sys.prefix) / "pyvenv.cfg"),
        *(str(path) for folder in folders for path in folder.glob("*.pth")),
    ]


def _facts(path: str) -> tuple[int, ...] | None:
    with contextlib.suppress(OSError):
        facts = os.stat(path)  # noqa: PTH116 - 1,600 calls before each run; Path.stat is slower
        # Inode, too: a file that replaces another one may have its time and size.
        return facts.st_mtime_ns, facts.st_size, facts.st_ino
    return None


def _entry_of(file: str) -> int:
    """Return the position on ``sys.path`` of a top-level module's folder; -1 if it is not there."""
    path = Path(file)
    folder = path.parent.parent if path.name.startswith("__init__.") else path.parent
    return sys.path.index(str(folder)) if str(folder) in sys.path else -1


def _is_module(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith((".py", ".so")) or Path(entry.path, "__init__.py").exists()
