"""Log folder of a plain pytest run without a results directory; its failures refer to logs there.

It is not below pytest's temporary folders, which the third following run deletes, or the next one with ``--basetemp``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from disttest.limits import KEPT_LOGS_S

_PREFIX = "disttest-logs-"
# A file in every such folder: the name alone could be another program's.
_MARK = ".made-by-disttest"


def make_folder() -> Path:
    """Create a private folder, and remove those of runs long past."""
    _remove_old(Path(tempfile.gettempdir()), time.time())  # noqa: TID251 - compared with the times of files
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (folder / _MARK).touch()
    return folder


def drop_folder(folder: Path) -> None:
    """Remove the folder of a run that reported nothing from it."""
    shutil.rmtree(folder, ignore_errors=True)


def _remove_old(parent: Path, now_s: float) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            found = [folder.lstat(), (folder / _MARK).lstat()]
        except OSError:
            continue
        # Folder and mark must belong to this user: other users can create the same names in /tmp.
        if {os.getuid()} == {each.st_uid for each in found} and found[0].st_mtime < now_s - KEPT_LOGS_S:
            drop_folder(folder)
