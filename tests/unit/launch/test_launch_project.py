"""The user's own project: what is read of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttest.errors import UsageError
from disttest.extras.container.user_project import read_project

PYPROJECT = """\
[build-system]
requires = ["setuptools>=64", "Torch"]

[project]
name = "mine"
dependencies = ["six"]

[project.optional-dependencies]
test = ["einops==0.8.1", "mine[More]"]
more = ["rich"]
"""


def test_folder_extras_and_requirements_are_read(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    project = read_project(f"{tmp_path}[test, More]")
    assert (project.folder, project.target) == (tmp_path, ".[test,More]")
    # Its own extra stays for pip, and the image has torch.
    assert project.first == "setuptools>=64\nsix\neinops==0.8.1\nrich\n"
    assert project.needs_torch

    plain = read_project(str(tmp_path))
    assert (plain.target, plain.dependencies) == (".", ("six",))


@pytest.mark.parametrize(
    ("script", "needs_torch"),
    [("import torch.utils", True), ("    from torch import cuda", True), ("import torchless", False)],
)
def test_a_script_that_imports_torch_is_built_with_the_images(
    tmp_path: Path, script: str, needs_torch: bool
) -> None:
    (tmp_path / "setup.py").write_text(f"{script}\n")
    assert read_project(str(tmp_path)).needs_torch is needs_torch


@pytest.mark.parametrize("text", ["", ".[a;b]", "none", ".[test]"])
def test_what_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"neither a pyproject\.toml nor a setup.py"):
        read_project(text)
    (tmp_path / "pyproject.toml").write_text("not toml")
    with pytest.raises(UsageError, match=r"cannot be read|neither a pyproject"):
        read_project(text)
