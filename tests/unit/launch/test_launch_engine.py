"""Images are pulled with several attempts, and the SDK's errors become ours; the engine here is a fake."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import tenacity
from docker.errors import APIError, ImageNotFound

from disttest.errors import EngineError, ExitCode, UsageError
from disttest.extras.container import engine as engine_module
from disttest.extras.container.engine import engine_errors, ensure_image, find_engine


class FakeEngine:
    """Has images, and a registry that answers as it is told."""

    def __init__(self, *answers: Any, has: tuple[str, ...] = ()) -> None:
        self.answers, self.has = list(answers), has
        self.pulled: list[tuple[str, str]] = []
        self.images = SimpleNamespace(get=self._get)
        self.api = SimpleNamespace(pull=self._pull)

    def _get(self, image: str) -> None:
        if image not in self.has:
            raise ImageNotFound("no such image")

    def _pull(self, name: str, *, tag: str, stream: bool, decode: bool) -> Iterator[dict[str, str]]:
        assert stream
        assert decode
        self.pulled.append((name, tag))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return iter(answer)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenacity.nap.time, "sleep", lambda _seconds: None)


def ensure(engine: FakeEngine, policy: str = "missing") -> list[str]:
    said: list[str] = []
    ensure_image(engine, "host/name:1", policy=policy, say=said.append)
    return said


LAYERS = [
    {"id": "a", "status": "Pulling fs layer"},
    {"id": "b", "status": "Pulling fs layer"},
    {"id": "a", "status": "Already exists"},
    {"id": "b", "status": "Downloading"},
    {"id": "b", "status": "Pull complete"},
]


def test_an_image_that_is_here_is_not_pulled() -> None:
    engine = FakeEngine(has=("host/name:1",))
    assert ensure(engine) == []
    assert engine.pulled == []


def test_always_pulls_all_the_same() -> None:
    engine = FakeEngine(LAYERS, has=("host/name:1",))
    ensure(engine, "always")
    assert engine.pulled == [("host/name", "1")]


def test_progress_is_told_in_layers() -> None:
    assert ensure(FakeEngine(LAYERS)) == [
        "pulling host/name:1",
        "pulling host/name:1: 1 of 2 layers",
        "pulling host/name:1: 2 of 2 layers",
    ]


@pytest.mark.parametrize(
    "failure",
    [
        requests.ConnectionError("reset"),
        APIError("toomanyrequests: slow down"),
        [{"error": "unexpected EOF"}],
    ],
)
def test_what_may_pass_is_tried_again(failure: Any) -> None:
    engine = FakeEngine(failure, failure, LAYERS)
    said = ensure(engine)
    assert len(engine.pulled) == 3
    assert sum("retrying" in line for line in said) == 2


def test_it_gives_up_after_four_attempts() -> None:
    engine = FakeEngine(*[requests.ConnectionError("dial tcp: i/o timeout")] * 9)
    with pytest.raises(EngineError, match="registry-unreachable"):
        ensure(engine)
    assert len(engine.pulled) == 4


@pytest.mark.parametrize(
    "refusal", ["manifest unknown", "pull access denied for x", "no space left on device"]
)
def test_a_refusal_is_final(refusal: str) -> None:
    engine = FakeEngine(APIError(refusal), LAYERS)
    with pytest.raises((EngineError, UsageError), match=refusal):
        ensure(engine)
    assert len(engine.pulled) == 1


def test_errors_say_what_was_being_done_and_end_in_exit_code_8() -> None:
    words = "starting: .*no space left on device\nthe engine's disk is full"
    with pytest.raises(EngineError, match=words) as caught, engine_errors("starting"):
        raise APIError("write: no space left on device")
    assert caught.value.exit_code == ExitCode.ENGINE


def test_bugs_of_ours_are_not_the_engines() -> None:
    with pytest.raises(KeyError), engine_errors("starting"):
        raise KeyError("x")


def test_no_engine_at_all(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disttest.extras.container.engine.endpoints", lambda **_arguments: ())
    with pytest.raises(EngineError, match="engine-missing"):
        find_engine(chosen="", environ={}, uid=1, home=str(tmp_path))


def test_an_engine_that_stays_silent_is_given_up_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "ENGINE_PING_S", 0.2)
    place = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(place))
        silent.listen()
        with pytest.raises(EngineError, match=r"(?s)--engine .*the engine does not answer.*\[engine-gone\]"):
            find_engine(chosen=f"unix://{place}", environ={}, uid=0, home="/")
