"""Unit tests start no process, and leave few files open: many machines allow a process 1,024."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

FEW = 300


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
