"""A growing trace, with each thing and each content stored once."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import FrameType
from typing import Any

from disttest.extras.sanitizers.values.digest import read_tensor
from disttest.extras.sanitizers.values.trace import MOST_ENTRIES, Content, Entry, Role, TensorPlace, Trace
from disttest.observe import Site, as_text

_PIPELINE_STAGE = "torch.distributed.pipelining.stage"
_INFERENCES = frozenset({"_shape_inference", "_forward_metadata_inference", "_backward_metadata_inference"})
"""Methods of a pipeline stage that run its module on uninitialised memory, for the shapes of its outputs."""


def infers_shapes() -> bool:
    """Whether this thread is in one of ``_INFERENCES``."""
    stage = sys.modules.get(_PIPELINE_STAGE)
    # inspect.currentframe has no depth, and inspect.stack reads source files (Python 3.11 to 3.13).
    frame: FrameType | None = sys._getframe(1) if stage else None  # noqa: SLF001
    while frame is not None:
        if frame.f_code.co_name in _INFERENCES and frame.f_globals is vars(stage):
            return True
        frame = frame.f_back
    return False


_LONG_HEAD, _SHORT_HEAD = 4096, 64
"""Bytes of a tensor that are kept verbatim: while there is room, and afterwards."""
_ROOM = 1 << 20
"""Bytes for the heads of one test."""


class Notes:
    """Observations of a rank since a test began."""

    def __init__(self) -> None:
        self._places: dict[TensorPlace, int] = {}
        self._contents: dict[Content, int] = {}
        self._entries: list[Entry] = []
        self._times: Counter[tuple[Role, int, str, int]] = Counter()
        self._room = _ROOM
        self._beyond = 0
        self._lock = threading.Lock()
        """Threads may use one group each, and call at the same time."""
        self.doubtful = False

    def add(self, place: TensorPlace, tensor: Any, number: int = 0) -> None:
        """Note a tensor in its present state.

        Args:
            place: description of the tensor.
            tensor: anything; values other than plain tensors are ignored.
            number: number of the call; 0: count the observations of the same thing.
        """
        if len(self._entries) >= MOST_ENTRIES:
            self._beyond += 1
            return
        content = read_tensor(tensor, most_head=_LONG_HEAD if self._room > 0 else _SHORT_HEAD)
        if content is None:
            return
        with self._lock:
            index = self._contents.get(content)
            if index is None:
                index = self._contents[content] = len(self._contents)
                self._room -= len(content.head)
            if not number:
                same = (place.role, place.model, place.name, place.index)
                self._times[same] += 1
                number = self._times[same]
            self._entries.append(Entry(self._places.setdefault(place, len(self._places)), index, number))

    def trace(self) -> Trace:
        """Return the trace."""
        return Trace(
            places=tuple(self._places),
            contents=tuple(self._contents),
            entries=tuple(self._entries),
            beyond=self._beyond,
            doubtful=self.doubtful,
        )


def site_fields(site: Site) -> dict[str, Any]:
    """Return the fields of a source line."""
    return {"file": as_text(site.file), "line": site.line}


def default_rank() -> int:
    """Return the rank of this process in the default group; -1 without one."""
    dist = sys.modules["torch.distributed"]
    return int(dist.get_rank()) if dist.is_initialized() else -1
