"""Unit tests start no process, and leave few files open: many machines allow a process 1,024."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import find, is_hypothesis_test, strategies

FEW = 300


@pytest.fixture(autouse=True, scope="session")
def _hypothesis_is_ready(request: pytest.FixtureRequest) -> None:
    """Let hypothesis read its tables and our constants, 2 s in a new checkout, before a test whose time is limited."""
    if any(is_hypothesis_test(getattr(item, "obj", None)) for item in request.session.items):
        find(strategies.text(), lambda _: True)


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a unit test must not start a process")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr("os.fork", refuse)


@pytest.fixture
def root(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Write files below a root."""

    def make(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


@pytest.fixture(autouse=True, scope="session")
def _few_files() -> Iterator[None]:
    yield
    assert len(os.listdir("/proc/self/fd")) < FEW
