"""What stands between a run and what is kept of it, where values are to be hidden: the terminal, and a last sweep."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttest.outgoing import outgoing
from disttest.results.journal import FILE_NAME

if TYPE_CHECKING:
    import pytest


class MaskedFile:
    """A text file that hides what is to be hidden in whatever is written to it; all else is the file's own."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> Any:
        """Write a piece of text; a value that comes in two pieces is beyond it."""
        return self._file.write(outgoing.text(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def mask_terminal(config: pytest.Config) -> None:
    """Hide what is to be hidden in what pytest itself prints (what tests print with ``-s`` is only the relay's)."""
    if not config.pluginmanager.hasplugin("terminalreporter"):
        return
    writer = config.get_terminal_writer()
    writer._file = MaskedFile(writer._file)  # noqa: SLF001


def hide_what_was_learned(results: Path) -> None:
    """Hide values in what was written before anybody knew them: a test may ask for it at any time."""
    if outgoing.active:
        hide_in_files([results / FILE_NAME, *(results / "logs").rglob("*")])


def hide_in_own_files(config: pytest.Config) -> None:
    """Hide values in what pytest has written itself: its JUnit file, its log file and its cache."""
    if not outgoing.active:
        return
    named = [config.getoption(name, None) for name in ("xmlpath", "log_file")]
    cache = getattr(config, "cache", None)
    kept = (cache._cachedir / "v").rglob("*") if cache else ()  # noqa: SLF001
    hide_in_files([*(Path(name) for name in named if name), *kept])


def hide_in_files(paths: Iterable[Path]) -> None:
    """Hide values in files; they are rewritten in place, since others hold them open, and only if there is something."""
    for path in paths:
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and (masked := _masked(path)) is not None:
                path.write_bytes(masked)


def _masked(path: Path) -> bytes | None:
    data = path.read_bytes()
    masked = outgoing.data(data)
    return None if masked is data else masked
