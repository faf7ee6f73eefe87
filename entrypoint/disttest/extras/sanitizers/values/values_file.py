"""File ``values.json``: observations of the ranks of one attempt, next to their logs, for ``disttest diverge``.

``{"version": 1, "nodeid": …, "size": 2, "backend": "gloo", "ranks": {"0": …, "1": …}}``, where each rank is a
:class:`~disttest.extras.sanitizers.values.trace.Trace`. Bytes are base64, and fields with default values are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from disttest.errors import UsageError
from disttest.extras.sanitizers.values.trace import Trace
from disttest.model import Frozen
from disttest.safe_open import read_input

FILE_NAME = "values.json"
VERSION = 1


class ValuesFile(Frozen):
    """Content of the file."""

    nodeid: str
    size: int
    """Size of the world; ranks that died are missing in ``ranks``."""
    backend: str
    ranks: dict[int, Trace]
    version: int = VERSION

    @property
    def base(self) -> str:
        """Node id without its world: the same for all sizes and backends."""
        # `test_a[2xgloo]` and `test_b[fp16-2xgloo]` become `test_a` and `test_b[fp16]`.
        world = f"{self.size}x{self.backend}"
        return self.nodeid.replace(f"[{world}]", "").replace(f"-{world}]", "]").replace(f"[{world}-", "[")


class _Raw(Frozen):
    """The same content before encoding."""

    nodeid: str
    size: int
    backend: str
    ranks: Mapping[int, msgspec.Raw]
    version: int


_decoder = msgspec.json.Decoder(ValuesFile)


def encode_recording(nodeid: str, size: int, backend: str, reports: Mapping[int, msgspec.Raw]) -> bytes:
    """Encode a file from the undecoded reports of ranks."""
    return msgspec.json.encode(
        _Raw(nodeid=nodeid, size=size, backend=backend, ranks=reports, version=VERSION)
    )


def read_recordings(path: Path) -> tuple[ValuesFile, ...]:
    """Read the recordings of a results directory, the last attempt of each test; or one, given its file.

    Raises:
        UsageError: there is none, or one cannot be read.
    """
    if path.is_file():
        return (_read(path),)
    if not path.is_dir():
        raise UsageError(f"no results directory {path}: give the one that the run wrote into")
    # logs/TEST/attempt-N/values.json. Sorted by N, so that the last attempt replaces earlier ones.
    last = {
        found.parent.parent: found
        for found in sorted(path.glob(f"logs/*/attempt-*/{FILE_NAME}"), key=_attempt)
    }
    if not last:
        raise UsageError(f"{path} has no recording of values; run the tests with --sanitize values")
    return tuple(sorted(map(_read, last.values()), key=lambda recording: recording.nodeid))


def _attempt(path: Path) -> int:
    number = path.parent.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _read(path: Path) -> ValuesFile:
    try:
        data = read_input(path)
        # The version first: another format may not decode as this one.
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise UsageError(f"{path} has format {version}; this version of disttest reads format {VERSION}")
        return _decoder.decode(data)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a recording of values: {error}") from error


class _Version(msgspec.Struct):
    version: int


def pairs(
    left: tuple[ValuesFile, ...], right: tuple[ValuesFile, ...]
) -> Iterator[tuple[ValuesFile, ValuesFile]]:
    """Pair the recordings of each test: with the same world if both have it, otherwise with any world."""
    exact = {recording.nodeid: recording for recording in right}
    for one in left:
        # World size 1 against 4 has no equal node id, and is a usual comparison.
        if one.nodeid in exact:
            yield one, exact[one.nodeid]
        else:
            yield from ((one, other) for other in right if other.base == one.base)
