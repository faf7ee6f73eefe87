"""Logs of a node's ranks that are sent to the client, up to a limit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from disttest.extras.cluster.protocol.wire import LogText
from disttest.model import Outcome, RankEnd, RankRecord
from disttest.runtime.messages.protocol import clean_text
from disttest.safe_open import Tree

LIMIT = 512 * 1024
"""Bytes of a log to send for a rank that failed or was ended: head and tail."""
GREEN_LIMIT = 32 * 1024
"""The same for a rank that passed or skipped."""


def log_texts(results: Path, ranks: Iterable[RankRecord]) -> Iterator[LogText]:
    """Yield the logs of these ranks, including empty ones, since reports name them; skip missing logs."""
    try:
        tree = Tree(results)
    except OSError:
        return
    for record in ranks:
        with contextlib.suppress(OSError):
            fd = tree.open(record.log)
            green = record.end is RankEnd.REPORTED and record.outcome in (Outcome.PASSED, Outcome.SKIPPED)
            yield LogText(path=record.log, text=read_capped(fd, GREEN_LIMIT if green else LIMIT))


def read_capped(fd: int, limit: int) -> str:
    """Read and close a file as text; of one that is too long only head and tail, with a mark between."""
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(fd).st_size
        if size <= limit:
            return clean_text(file.read().decode("utf-8", "replace"))
        head = file.read(limit // 2)
        file.seek(-(limit // 2), 2)
        tail = file.read()
    cut = size - 2 * (limit // 2)
    mark = f"\n\n[disttest: {cut} bytes stayed on the node]\n\n"
    return clean_text(head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace"))
