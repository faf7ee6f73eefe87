"""Checks every ``results.json`` that a test's run has left against the published schema."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
from results_schema import SCHEMA_ID

from disttest.reports.results_json import FILE_NAME

PUBLISHED = Path(__file__).parents[2] / "docs" / SCHEMA_ID


def check_results_below(folder: Path) -> None:
    """Each ``results.json`` in a folder, however deep, follows the schema.

    Raises:
        AssertionError: one does not; the message names the file, the place in it, and what is wrong there.
    """
    for path in sorted(folder.rglob(FILE_NAME)):
        check_results(path)


def check_results(path: Path) -> None:
    """A ``results.json`` follows the schema, and holds nothing that the schema does not describe.

    Raises:
        AssertionError: see :func:`check_results_below`.
    """
    wrong = next(_validator().iter_errors(json.loads(path.read_bytes())), None)
    assert wrong is None, f"{path}: {wrong.json_path}: {wrong.message}"


@functools.cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(PUBLISHED.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator({**schema, "$defs": _closed(schema["$defs"])})


def _closed(definitions: dict[str, Any]) -> dict[str, Any]:
    """The same without room for more: readers must accept a field of a later release, this one must describe its own."""
    return {
        name: {**one, "additionalProperties": False} if "properties" in one else one
        for name, one in definitions.items()
    }
