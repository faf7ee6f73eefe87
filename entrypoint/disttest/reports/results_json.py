"""``results.json``: the aggregate itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from disttest.reports.text import clean
from disttest.results.fold import RunResult

FILE_NAME = "results.json"


def results_json_pieces(run: RunResult) -> Iterator[bytes]:
    """Yield the run as indented JSON that conforms to the published schema.

    There is one piece for each test and world, so that a large run is never in memory a second time.
    """
    # Default values are omitted, but never the version, which determines how to read the rest.
    rest = msgspec.structs.replace(run, tests=(), worlds=())
    fields = {"schema_version": run.schema_version, **msgspec.to_builtins(rest)}
    large: dict[str, Sequence[msgspec.Struct]] = {"tests": run.tests, "worlds": run.worlds}
    lead = b"{\n "
    for name, value in fields.items():
        yield lead + _encoded(name) + b": "
        lead = b",\n "
        if large.get(name):
            yield from _list_pieces(large[name])
        else:
            yield _indented(_encoded(value), 1)
    yield b"\n}\n"


def _list_pieces(items: Iterable[msgspec.Struct]) -> Iterator[bytes]:
    lead = b"[\n  "
    for item in items:
        yield lead + _indented(_encoded(item), 2)
        lead = b",\n  "
    yield b"\n ]"


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    # UTF-8 cannot encode a lone surrogate.
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value)))


def _indented(encoded: bytes, depth: int) -> bytes:
    # JSON strings contain no newline, so every newline ends a line.
    return msgspec.json.format(encoded, indent=1).replace(b"\n", b"\n" + b" " * depth)


def load_results_json(text: str | bytes) -> RunResult:
    """Read the output of :func:`results_json_pieces`.

    Raises:
        msgspec.ValidationError: the text is JSON, but does not conform to the schema.
        msgspec.DecodeError: the text is not JSON.
    """
    return msgspec.json.decode(text, type=RunResult)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value
