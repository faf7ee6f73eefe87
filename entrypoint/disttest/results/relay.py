"""Hide secrets on the way out of a run: in the terminal, and finally in its files."""

from __future__ import annotations

import contextlib
import os.path
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttest.outgoing import outgoing
from disttest.results.journal import FILE_NAME

if TYPE_CHECKING:
    import pytest

_NAME = re.compile(rb'"(?:nodeid|name)":("(?:[^"\\]|\\.)*")')


class MaskedFile:
    """A text file that masks secrets in everything that is written to it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> Any:
        """Write text; a secret that is split over two calls is not recognized."""
        return self._file.write(outgoing.text(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def mask_terminal(config: pytest.Config) -> None:
    """Mask pytest's own output. With ``-s`` the output of tests bypasses it, and only the command's relay masks it."""
    if not config.pluginmanager.hasplugin("terminalreporter"):
        return
    writer = config.get_terminal_writer()
    # pytest's TerminalWriter has no public way to replace its file (pytest 8.4 to 9.2).
    writer._file = MaskedFile(writer._file)  # noqa: SLF001


def hide_what_was_learned(results: Path) -> None:
    """Mask values that were learned after they had been written: a test may name a secret at any time."""
    if outgoing.active:
        # The JSON files are those that the command attached.
        hide_in_files([results / FILE_NAME, *results.glob("*.json"), *(results / "logs").rglob("*")])


def hide_in_own_files(config: pytest.Config) -> None:
    """Mask values in the files that pytest writes: its JUnit file, its log file and its cache."""
    if not outgoing.active:
        return
    # As pytest reads them: the JUnit file may have `~` and variables, and the log file may be named in a file of settings.
    named = [os.path.expanduser(os.path.expandvars(config.getoption("xmlpath", None) or ""))]  # noqa: PTH111
    if (log := config.pluginmanager.getplugin("logging-plugin")) is not None:
        named.append(log.log_file_handler.baseFilename)
    cache = getattr(config, "cache", None)
    # The public methods of pytest's cache read one key each (pytest 8.4 to 9.2); here every file is wanted, whichever
    # plugin wrote it.
    # pytest keeps the values of all plugins, such as the last failures, below `v`.
    kept = (cache._cachedir / "v").rglob("*") if cache else ()  # noqa: SLF001
    hide_in_files([*(Path(name) for name in named if name), *kept])


def hide_in_files(paths: Iterable[Path]) -> None:
    """Mask files in place, because other processes hold them open; unchanged files are not rewritten."""
    for path in paths:
        # A test may remove a file meanwhile or own it as another user. The other files are filtered all the
        # same.
        with contextlib.suppress(OSError):
            # Tests can write into these folders, and a link could lead to any file of the user.
            if path.is_file() and not path.is_symlink() and (masked := _masked(path)) is not None:
                # Renaming a new file into place would leave open descriptors with the old content.
                path.write_bytes(masked)


def _masked(path: Path) -> bytes | None:
    data = path.read_bytes()
    if path.suffix in (".json", ".jsonl"):
        masked = outgoing.json(_told_apart(data) if path.name == FILE_NAME else data)
    else:
        masked = outgoing.data(data)
    return None if masked is data else masked


def _told_apart(journal: bytes) -> bytes:
    """Number the tests in a journal whose names differ in hidden values only."""
    seen: Counter[bytes] = Counter()
    for name in dict.fromkeys(_NAME.findall(journal)):
        hidden = outgoing.data(name)
        seen[hidden] += 1
        if seen[hidden] > 1:
            journal = journal.replace(name, b'%s~%d"' % (hidden[:-1], seen[hidden]))
    return journal
