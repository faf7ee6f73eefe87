"""What stands between a run and what is kept of it, where values are to be hidden: the terminal, and a last sweep."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttest.masking import MaskedStream, masker
from disttest.results.journal import FILE_NAME

if TYPE_CHECKING:
    import pytest

_CHUNK = 1 << 16
REMOVED = (
    "the results directory was removed while the run wrote into it: journal and reports were restored, the logs of "
    "the ranks up to then are lost"
)


class Relay:
    """Hands the output of the pytest process on to the terminal, without the values that are to be hidden."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._stream = MaskedStream(masker)
        self.ended = False
        """Nobody holds the other end any more."""

    def fileno(self) -> int:
        """Readable when there is something to hand on."""
        return self._reader

    def environment(self) -> dict[str, str]:
        """What tells the process of the terminal that it no longer sees."""
        if not sys.stdout.isatty():
            return {}
        return {"PY_COLORS": "1", "COLUMNS": str(shutil.get_terminal_size().columns)}

    def hand_over(self) -> None:
        """The child has its end now."""
        os.close(self.writer)

    def pump(self) -> bool:
        """Hand on what there is; whether that was the end."""
        while True:
            try:
                data = os.read(self._reader, _CHUNK)
            except BlockingIOError:
                return False
            _show(self._stream.feed(data) if data else self._stream.finish())
            if not data:
                self.ended = True
                return True

    def finish(self) -> None:
        """Hand on the rest; nobody is left who writes."""
        self.pump()
        _show(self._stream.finish())
        os.close(self._reader)


class MaskedFile:
    """A text file that hides what is to be hidden in whatever is written to it; all else is the file's own."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> Any:
        """Write a piece of text; a value that comes in two pieces is beyond it."""
        return self._file.write(masker.text(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def mask_terminal(config: pytest.Config) -> None:
    """Hide what is to be hidden in what pytest itself prints (what tests print with ``-s`` is only the relay's)."""
    writer = config.get_terminal_writer()
    writer._file = MaskedFile(writer._file)  # noqa: SLF001


def _show(data: bytes) -> None:
    if data:
        with contextlib.suppress(OSError):  # nobody reads it: the reports are written all the same
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def hide_what_was_learned(results: Path) -> None:
    """Hide values in what was written before anybody knew them: a test may ask for it at any time.

    Files are rewritten in place, since others hold them open; only those that have something to hide.
    """
    if not masker.active:
        return
    for path in [results / FILE_NAME, *(results / "logs").rglob("*")]:
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and (masked := _masked(path)) is not None:
                path.write_bytes(masked)


def _masked(path: Path) -> bytes | None:
    data = path.read_bytes()
    masked = masker.data(data)
    return None if masked is data else masked
