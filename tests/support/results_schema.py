"""The published JSON schema of ``results.json``, made from the code."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from disttest import model
from disttest.model import SCHEMA_VERSION
from disttest.results import fold
from disttest.results.fold import RunResult

SCHEMA_ID = f"disttest-results-v{SCHEMA_VERSION}.schema.json"


def results_schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of ``results.json``; field descriptions come from the code."""
    schema = msgspec.json.schema(RunResult)
    whole = schema["$defs"]["RunResult"]
    # msgspec treats fields with a default as optional.
    whole["required"].append("schema_version")
    whole["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    kinds = vars(model) | vars(fold)
    for name, definition in schema["$defs"].items():
        for field, description in _field_docs(kinds[name]) if "properties" in definition else ():
            definition["properties"][field]["description"] = description
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": f"disttest results, version {SCHEMA_VERSION}",
        **schema,
    }


def _field_docs(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the docstrings of a class's fields, which exist only in the source."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    for field, below in pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())


def render_schema() -> str:
    """Return the schema as published in the documentation."""
    return json.dumps(results_schema(), indent=2) + "\n"
