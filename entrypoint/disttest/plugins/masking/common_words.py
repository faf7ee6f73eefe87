"""Words that cannot be hidden, because reports and journals are made of them: ``failed``, ``testcase``, ``nodeid``."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator
from typing import Any

# Of pytest's reports as JSON, of JUnit files and of plans; the test of this module compares the list with real files.
_OTHERS = """
    $report_type TestReport CollectReport nodeid location keywords outcome longrepr when user_properties sections duration
    start stop result reprcrash reprtraceback reprentries reprentry reprfuncargs reprlocals reprfileloc lines style data
    type path lineno message extraline chain args ReprEntry ReprEntryNative ReprTraceback ReprFileLocation long short native
    setup call teardown passed failed skipped rerun error wasxfail worker_id item_index testrun_uid
    xml version encoding utf-8 testsuites testsuite testcase failure properties property system-out system-err name
    classname time timestamp hostname tests errors failures file line value disabled id CDATA xfail
    plan_id shards revision expected_s scheduler pool grant partition number spread labels ranks_per_node true false null None
"""


def is_common(value: str) -> bool:
    """Whether a value is part of a word of the formats: without such a word no program could read them."""
    return any(value in word for word in _words())


@functools.cache
def _words() -> frozenset[str]:
    import msgspec

    from disttest.results.events import AnyEvent

    _, parts = msgspec.json.schema_components(typing.get_args(AnyEvent))
    return frozenset([*_OTHERS.split(), *_names(parts)])


def _names(schema: Any) -> Iterator[str]:
    """Yield the names of fields and the values of enumerations in a JSON schema."""
    if isinstance(schema, list):
        for item in schema:
            yield from _names(item)
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        yield from (str(value) for value in schema.get("enum", ()))
        for item in schema.values():
            yield from _names(item)
