"""``results.json``: the aggregate itself, and the schema that describes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from disttest.model import SCHEMA_VERSION
from disttest.reports.text import clean
from disttest.results.fold import RunResult

FILE_NAME = "results.json"
SCHEMA_ID = f"disttest-results-v{SCHEMA_VERSION}.schema.json"


def render_results_json(run: RunResult, results_dir: Path | None = None) -> str:  # noqa: ARG001
    """Return the run as indented JSON that the schema of :func:`results_schema` accepts."""
    # Defaults are left out of the file, but never the version, which says how to read the rest.
    fields = {"schema_version": run.schema_version, **msgspec.to_builtins(run)}
    try:
        encoded = msgspec.json.encode(fields)
    except UnicodeEncodeError:  # a lone surrogate somewhere: UTF-8 has no way to say it
        encoded = msgspec.json.encode(_encodable(fields))
    return msgspec.json.format(encoded, indent=1).decode() + "\n"


def load_results_json(text: str | bytes) -> RunResult:
    """Read back what :func:`render_results_json` wrote.

    Raises:
        msgspec.ValidationError: it is JSON, but not of this schema.
        msgspec.DecodeError: it is not JSON.
    """
    return msgspec.json.decode(text, type=RunResult)


def results_schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of ``results.json``."""
    schema = msgspec.json.schema(RunResult)
    schema["$defs"]["RunResult"]["required"].append("schema_version")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": f"disttest results, version {SCHEMA_VERSION}",
        **schema,
    }


def render_schema() -> str:
    """Return the schema as it is published in the documentation."""
    return json.dumps(results_schema(), indent=2) + "\n"


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value
