"""Convert pytest's reports to text for another process, whatever a test, a plugin or a conftest has put into them.

A property may be any object, and its ``__repr__`` may raise. That is no failure of the test and must not end its rank;
in pytest itself it was an internal error: https://github.com/pytest-dev/pytest/issues/7145
"""

from __future__ import annotations

from collections.abc import Iterator

# By name: tests replace `json.dumps`, whose text would then end the rank, or pytest in the controller.
from json import dumps
from typing import Any

import pytest
from _pytest._io.saferepr import saferepr

from disttest.outgoing import outgoing

# Maximum depth of data that JSON cannot encode; pytest's own reports have about six levels.
_DEEPEST = 50


def report_as_json(report: pytest.TestReport, config: pytest.Config) -> tuple[dict[str, Any], str]:
    """Return a report in pytest's serialisable form, masked, and as ASCII JSON."""
    data = masked(serialisable(report, config)) if outgoing.active else serialisable(report, config)
    try:
        return data, dumps(data, default=_represent)
    except Exception:  # noqa: BLE001 - what is in it is not ours
        # Masked once more: the representation of an object is a new text.
        data = outgoing.tree(_plain(data))
        return data, dumps(data)


def serialisable(report: pytest.TestReport, config: pytest.Config) -> dict[str, Any]:
    """Return a report in pytest's serialisable form, or its essentials if that fails."""
    try:
        data: dict[str, Any] = config.hook.pytest_report_to_serializable(config=config, report=report)
    except Exception:  # noqa: BLE001 - its traceback may be an object of a plugin
        return _essentials(report)
    return data


def masked(data: dict[str, Any]) -> dict[str, Any]:
    """Mask the data of a report."""
    try:
        return outgoing.tree(data)  # type: ignore[no-any-return]
    except Exception:  # noqa: BLE001 - a list that contains itself, say
        return outgoing.tree(_plain(data))  # type: ignore[no-any-return]


def text_of(value: object) -> str:
    """Return ``str(value)``, or a description of a value whose ``str`` fails."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - it is the test's own
        return _represent(value)


def sections_of(report: pytest.TestReport) -> Iterator[tuple[str, str]]:
    """Yield title and content of captured output; malformed sections are left out."""
    for section in report.sections:
        if isinstance(section, tuple) and len(section) == 2:
            title, content = section
            yield text_of(title), text_of(content)


def _represent(value: object) -> str:
    return saferepr(value, maxsize=None)


def _essentials(report: pytest.TestReport) -> dict[str, Any]:
    """Return the fields that a report needs to be read again, with its traceback as text."""
    facts = {name: value for name, value in vars(report).items() if not name.startswith("_")}
    text = None if report.longrepr is None else text_of(report.longrepr)
    skipped = isinstance(report.longrepr, tuple)
    return {
        **facts,
        "nodeid": report.nodeid,
        "longrepr": list(report.longrepr) if skipped else text,  # type: ignore[arg-type]
        "sections": list(sections_of(report)),
        "$report_type": "TestReport",
    }


def _plain(value: object, depth: int = 0) -> Any:
    """Convert a value to JSON types; everything else becomes its representation."""
    if value is None or isinstance(value, (str, bool, float)):
        return value
    if isinstance(value, int):
        # Larger integers are not portable between readers of JSON.
        return value if abs(value) < 1 << 63 else _represent(value)
    if depth == _DEEPEST or not isinstance(value, (dict, list, tuple)):
        return _represent(value)
    try:
        if isinstance(value, dict):
            return {text_of(key): _plain(item, depth + 1) for key, item in value.items()}
        return [_plain(item, depth + 1) for item in value]
    except Exception:  # noqa: BLE001 - a container of the test's own
        return _represent(value)
