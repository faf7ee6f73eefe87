"""Reports of pytest as text for another process."""

from __future__ import annotations

import json

import pytest

from disttest.outgoing import Outgoing, OutputFilter
from disttest.runtime.messages import portable


class Hides(OutputFilter):
    """Hides one word."""

    active = True

    def data(self, data: bytes, **_borders: bool) -> bytes:
        return data.replace(b"hunter2", b"***")


@pytest.mark.parametrize(("installed", "shown"), [(Hides(), "***"), (OutputFilter(), "hunter2")])
def test_a_report_leaves_the_process_masked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, installed: OutputFilter, shown: str
) -> None:
    monkeypatch.setattr(portable, "outgoing", outgoing := Outgoing())
    outgoing.install(installed)
    report = pytest.TestReport("t", ("t", 1, "t"), {}, "failed", "password hunter2", "call")

    data, text = portable.report_as_json(report, request.config)

    assert data["longrepr"] == f"password {shown}"
    assert json.loads(text)["longrepr"] == f"password {shown}"


def test_a_test_may_replace_json(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    report = pytest.TestReport("t", ("t", 1, "t"), {}, "passed", None, "call")
    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", lambda *_, **__: "{}")
        _, text = portable.report_as_json(report, request.config)

    assert "t" == json.loads(text)["nodeid"]
