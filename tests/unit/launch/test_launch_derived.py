"""A requirements file becomes a layer of the image, once; the engine here is a fake."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import BuildError, ImageNotFound

from disttest.errors import UsageError
from disttest.extras.container.derived import with_requirements


class FakeEngine:
    """Has one image, and builds others."""

    def __init__(self, refuses: str = "") -> None:
        self.images = SimpleNamespace(get=self._get, build=self._build)
        self.ids = {"base:1": "sha256:base"}
        self.built: list[dict[str, str]] = []
        self._refuses = refuses

    def _get(self, name: str) -> Any:
        if name not in self.ids:
            raise ImageNotFound("no such image")
        return SimpleNamespace(id=self.ids[name])

    def _build(self, *, fileobj: io.BytesIO, tag: str, **_rest: Any) -> None:
        if self._refuses:
            raise BuildError(
                "returned 1", [{"stream": f"line {n}\n"} for n in range(50)] + [{"stream": self._refuses}]
            )
        with tarfile.open(fileobj=fileobj) as context:
            self.built.append({one.name: context.extractfile(one).read().decode() for one in context})
        self.ids[tag] = f"sha256:{tag}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text("einops==0.8.1\n")
    return path


def test_it_is_installed_once_for_an_image_and_a_text(file: Path) -> None:
    engine, said = FakeEngine(), []
    first = with_requirements(engine, "base:1", file, said.append)
    assert with_requirements(engine, "base:1", file, said.append) == first
    assert [context["requirements.txt"] for context in engine.built] == ["einops==0.8.1\n"]
    # By its id: a tag can move while this lasts.
    assert engine.built[0]["Dockerfile"].startswith("FROM sha256:base\n")
    assert said == [f"installing {file} into base:1"]

    file.write_text("einops==0.8.0\n")
    assert with_requirements(engine, "base:1", file, said.append) != first
    engine.ids["base:1"] = "sha256:newer"
    assert with_requirements(engine, "base:1", file, said.append) != first
    assert len(engine.built) == 3


def test_what_pip_says_is_told_and_is_no_fault_of_the_machine(file: Path) -> None:
    engine = FakeEngine(refuses="The user requested (constraint) torch==2.9.0")
    with pytest.raises(UsageError) as raised:
        with_requirements(engine, "base:1", file, print)
    told = str(raised.value)
    assert told.startswith(f"--requirements {file} cannot be installed into the image:\nline 39\n")
    assert told.endswith("The user requested (constraint) torch==2.9.0")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--requirements .*none.txt cannot be read"):
        with_requirements(FakeEngine(), "base:1", tmp_path / "none.txt", print)
