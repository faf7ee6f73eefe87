"""File format of a recording: a line that names the format, then records in msgpack, each after its length.

Records are written one by one as things happen, so the file is complete up to the point at which the rank ended. A file
may come from anywhere and is read as data: nothing in it is run, and no size in it is trusted.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from disttest.descriptors import move_high
from disttest.errors import UsageError
from disttest.model import Frozen, WorldShape, short_place
from disttest.observe import Spec
from disttest.safe_open import read_input

SUFFIX = ".recording"
MAGIC = b"disttest recording 1\n"
"""The number changes when a reader of the previous version would misread the file."""
# Bound at import: tests may monkeypatch it.
_write = os.write
_LENGTH = struct.Struct("<I")
_LIMIT = 1 << 30
"""Largest file in bytes; a rank that receives more cannot be replayed."""


class RecordedSignature(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A call without its values. Methods of stores and groups being made have only ``op`` and ``keys``."""

    op: str
    group: str = ""
    ranks: tuple[int, ...] = ()
    peer: int | None = None
    tag: int = 0
    root: int | None = None
    reduce_op: str = ""
    inputs: tuple[Spec, ...] = ()
    outputs: tuple[Spec, ...] = ()
    keys: tuple[str, ...] = ()


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """A record of the file; an array, so that frequent records take few bytes."""


class Head(_Record, tag=0, frozen=True, kw_only=True):
    """The recorded rank and its environment."""

    nodeid: str
    rank: int
    shape: WorldShape
    seed: int
    """Seed of the rank's random generators at the beginning of the test."""
    environment: dict[str, str]
    """Variables that the world passed to the rank: those of torchrun."""
    torch: str
    generation: int
    """Number of tests that the world had run before."""


class CallSite(_Record, tag=1, frozen=True):
    """A kind of call at one source line, numbered from 0 in the order of these records."""

    signature: RecordedSignature
    file: str
    line: int

    def __str__(self) -> str:
        place = short_place(self.file, self.line) or "no line of Python"
        return f"{describe(self.signature)} at {place}"


class Called(_Record, tag=2, frozen=True):
    """The rank issued a call; calls are numbered from 0 in the order of these records."""

    place: int
    digest: int
    """CRC-32 of the values that the rank handed over."""


class Filled(_Record, tag=3, frozen=True):
    """A call finished; ``body`` holds the tensors that it wrote, one after the other."""

    call: int
    body: memoryview


class StoreAnswered(_Record, tag=4, frozen=True):
    """A store answered."""

    call: int
    value: Any


class Raised(_Record, tag=5, frozen=True):
    """A call, or the wait for it, raised."""

    call: int
    kind: str
    message: str


class Unfit(_Record, tag=6, frozen=True):
    """Reason why the recording cannot be replayed."""

    reason: str


class Completed(_Record, tag=7, frozen=True):
    """The rank finished the test; missing if the rank was ended."""


Record = Head | CallSite | Called | Filled | StoreAnswered | Raised | Unfit | Completed
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def describe(signature: RecordedSignature) -> str:
    """Describe a call in a few words."""
    words = signature.op
    if signature.group:
        words += f" of group {signature.group}"
    if signature.peer is not None:
        words += f" with rank {signature.peer}"
    if signature.root is not None:
        words += f" with root {signature.root}"
    if signature.keys:
        words += f" of {', '.join(map(repr, signature.keys))}"
    values = ", ".join(map(str, signature.inputs or signature.outputs))
    return (
        f"{words} ({signature.reduce_op + ' ' if signature.reduce_op else ''}{values})" if values else words
    )


class Writer:
    """Writer of a recording. Any thread may use it, since each record is one write.

    Args:
        path: path of a file that does not exist; its folder is made if needed.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL and O_NOFOLLOW: a test may have put a link or a file of its own there.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = move_high(os.open(path, flags, 0o644))
        self._size = _write(self._fd, MAGIC)
        self.is_full = False

    def write(self, record: Record) -> None:
        """Append a record; beyond the limit, append only the reason why the recording is unusable."""
        if self._fd < 0 or self.is_full:
            return
        data = _encoder.encode(record)
        if self._size + len(data) > _LIMIT:
            self.is_full = True
            # The reason takes the place of the record. After it nothing is written, so the file stays below a
            # fixed size.
            data = _encoder.encode(Unfit(f"it received more than {_LIMIT >> 20} MiB"))
        data = _LENGTH.pack(len(data)) + data
        self._size += len(data)
        try:
            while data:  # a signal or a full disk may cut a write short
                data = data[_write(self._fd, data) :]
        except OSError:
            # The disk is full, or the test has limited the size of files. The recording ends here, so that it is
            # refused, and the test goes on.
            self.is_full = True

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Recording(Frozen):
    """Content of a recording."""

    head: Head
    places: tuple[CallSite, ...]
    calls: tuple[Called, ...]
    filled: dict[int, memoryview]
    answers: dict[int, Any]
    errors: dict[int, Raised]
    unfit: tuple[str, ...]
    is_whole: bool
    """Whether the rank finished the test."""

    def place(self, call: int) -> CallSite:
        """Return the kind and place of a call."""
        return self.places[self.calls[call].place]

    def is_open(self, call: int) -> bool:
        """Whether the call never finished."""
        return call not in self.filled and call not in self.answers and call not in self.errors


def read_recording(path: Path) -> Recording:
    """Read a recording.

    Raises:
        UsageError: the file is not a recording, has another version, or is incomplete.
    """
    try:
        data = read_input(path)
    except OSError as error:
        raise UsageError(f"the recording {path} cannot be read: {error.strerror}") from error
    if not data.startswith(MAGIC):
        known = data.startswith(b"disttest recording ")
        what = "was written by another version of disttest" if known else "is not a recording of disttest"
        raise UsageError(f"{path} {what}; record the test again with disttest record")
    try:
        return _fold(list(_records(memoryview(data)[len(MAGIC) :])))
    except (msgspec.MsgspecError, IndexError, ValueError) as error:
        raise UsageError(
            f"the recording {path} is damaged or was cut off ({error}); copy it from the run again, or record the test again"
        ) from None


def _records(data: memoryview) -> Iterator[Record]:
    at = 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise ValueError("the last record has no length")
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + size > len(data):
            raise ValueError(f"the last record lacks {at + size - len(data)} bytes")
        yield _decoder.decode(data[at : at + size])
        at += size


def _fold(records: Sequence[Record]) -> Recording:
    head, *rest = records
    if not isinstance(head, Head):
        raise ValueError("it does not begin with a header")  # ValueError, not TypeError: the file is wrong
    by_type: dict[type, list[Any]] = {}
    for record in rest:
        by_type.setdefault(type(record), []).append(record)
    places, calls = by_type.get(CallSite, []), by_type.get(Called, [])
    for call in calls:
        # Python accepts a negative place and takes another record. Files may come from anywhere.
        if not 0 <= call.place < len(places):
            raise ValueError(f"a call refers to place {call.place} of {len(places)}")
    return Recording(
        head=head,
        places=tuple(places),
        calls=tuple(calls),
        filled={each.call: each.body for each in by_type.get(Filled, [])},
        answers={each.call: each.value for each in by_type.get(StoreAnswered, [])},
        errors={each.call: each for each in by_type.get(Raised, [])},
        unfit=tuple(dict.fromkeys(each.reason for each in by_type.get(Unfit, []))),
        is_whole=bool(rest) and isinstance(rest[-1], Completed),
    )
