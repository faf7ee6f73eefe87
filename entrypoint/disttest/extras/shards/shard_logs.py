"""Import the logs of a shard into the directory of a merged run. Artifacts are untrusted input."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from urllib.parse import quote

import msgspec

from disttest.extras.shards.shard_sources import ShardSource
from disttest.model import RankRecord
from disttest.safe_open import Tree, create_file

MOST_COPIED = 1 << 30
"""Largest log that is copied, in bytes; a sparse file can claim a terabyte."""


class ShardLogs:
    """Imports the logs of one shard into the merged directory."""

    def __init__(self, source: ShardSource, into: Path) -> None:
        self._tree = Tree(source.directory)
        # One flat folder for each shard: creating 200,000 folders takes longer than the rest of a large merge.
        self._folder = f"logs/{source.label}"
        (into / self._folder).mkdir(parents=True, exist_ok=True)
        self._target = os.open(into / self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.missing = 0

    def moved(self, record: RankRecord) -> RankRecord:
        """Return the record with its log linked into the merged directory."""
        if not record.log:
            return record
        parts = record.log.split("/")
        name = "+".join(quote(part, safe="[]", errors="replace") for part in parts[parts[0] == "logs" :])
        if not self._import_log(record.log, name):
            self.missing += 1
            return msgspec.structs.replace(record, log="")
        return msgspec.structs.replace(record, log=f"{self._folder}/{name}")

    def _import_log(self, log: str, name: str) -> bool:
        # Only a regular file below the shard's own results directory is a log: artifacts are untrusted input.
        try:
            fd = self._tree.open(log)
        except OSError:
            return False
        try:
            return self._link(fd, name) or _copied(fd, name, self._target)
        finally:
            os.close(fd)

    def _link(self, fd: int, name: str) -> bool:
        try:
            # Linking through /proc links the file that was opened, even if another file has taken its name since.
            os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=self._target)
        except FileExistsError:
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close both directories."""
        self._tree.close()
        os.close(self._target)


def _copied(fd: int, name: str, folder: int) -> bool:
    """Copy the log if it cannot be hard-linked: it is on another file system, or on one without links."""
    if os.fstat(fd).st_size > MOST_COPIED:
        return False
    try:
        copy = create_file(name, at=folder)
    except OSError:
        return False
    with os.fdopen(fd, "rb", closefd=False) as source, os.fdopen(copy, "wb") as target:
        shutil.copyfileobj(source, target)
    return True
