"""Where a run under plain pytest writes that was given no results directory: its failures name logs that lie there.

Not below pytest's own temporary folders: those go with the third run that follows, or with ``--basetemp`` at the next.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from disttest.limits import KEPT_LOGS_S

_PREFIX = "disttest-logs-"
# In every folder of ours: a name alone could be anybody's.
_MARK = ".made-by-disttest"


def make_folder() -> Path:
    """A new folder, nobody else's to read; those of runs long past are removed."""
    _remove_old(Path(tempfile.gettempdir()), time.time())  # noqa: TID251 - compared with the times of files
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (folder / _MARK).touch()
    return folder


def drop_folder(folder: Path) -> None:
    """Nothing that has been reported is in it."""
    shutil.rmtree(folder, ignore_errors=True)


def _remove_old(parent: Path, now_s: float) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            found = [folder.lstat(), (folder / _MARK).lstat()]
        except OSError:
            continue
        if {os.getuid()} == {each.st_uid for each in found} and found[0].st_mtime < now_s - KEPT_LOGS_S:
            drop_folder(folder)
