"""The user's own project in the image: each layout, extras, and modules that a compiler makes."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import blocks, commands
from engine import Engine, build, build_target, copy_certificates
from launching import Launcher

import disttest

PYPROJECT = """\
[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "mine"
version = "1.0"
dependencies = ["six"]
optional-dependencies.more = ["einops==0.8.1"]

[tool.setuptools]
"""
SRC = 'package-dir = {"" = "src"}\npackages = ["mine"]\n'
FLAT = 'packages = ["mine"]\n'
EXTENSION = """\
from setuptools import Extension, setup
setup(ext_modules=[Extension("mine.fast", ["mine/fast.c"])])
"""
FAST = """\
#include <Python.h>
#ifndef ANSWER
#define ANSWER 42
#endif
static struct PyModuleDef fast = {PyModuleDef_HEAD_INIT, "fast", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_fast(void) {
    PyObject *made = PyModule_Create(&fast);
    if (made) PyModule_AddIntConstant(made, "ANSWER", ANSWER);
    return made;
}
"""
TORCH_EXTENSION = """\
import torch
from setuptools import Extension, setup
major = torch.__version__.partition(".")[0]
setup(ext_modules=[Extension("mine.fast", ["mine/fast.c"], define_macros=[("ANSWER", f"{major} * 21")])])
"""
TEST = """
import importlib.metadata, pytest, {imports}

@pytest.mark.world_size(2)
def test_mine(world):
    assert importlib.metadata.version("mine") == "1.0"
    assert {holds}
"""


class Checkout:
    """A user's repository."""

    def __init__(self, launcher: Launcher, image: str) -> None:
        self.folder, self.launcher, self.image = launcher.workspace, launcher, image

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def test(self, imports: str, holds: str) -> None:
        # Tests in a package put the checkout first on sys.path: the hardest case.
        self.write({"tests/__init__.py": "", "tests/test_mine.py": TEST.format(imports=imports, holds=holds)})

    def launch(self, project: str, *more: str) -> subprocess.CompletedProcess[str]:
        asked = ("--image", self.image, "--pull=never", "--gpus=none", "--project", project, *more)
        return self.launcher.run(*asked, "tests", timeout_s=300)


CERTIFIED = """\
FROM {image}
COPY certificates /usr/local/share/ca-certificates
RUN update-ca-certificates
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
"""


def certified(engine: Engine, image: str, folder: Path) -> str:
    """The image, able to reach the package index from here."""
    tag = f"disttest-test/certified-{image.split('/')[1]}"
    (folder / "Dockerfile").write_text(CERTIFIED.format(image=image))
    copy_certificates(folder / "certificates")
    build(engine, folder, tag=tag)
    return tag


@pytest.fixture
def no_layers_left(engine: Engine) -> Iterator[None]:
    """The engine's data outlives the tests: a layer there keeps its whole image."""
    yield
    for kind in ("requirements", "project"):
        engine.docker("image", "prune", "--all", "--force", f"--filter=label=io.disttest.{kind}")
        assert engine.docker("image", "ls", "--quiet", f"disttest-{kind}").stdout == ""


@pytest.fixture
def checkout(
    engine: Engine, image: str, launcher: Launcher, tmp_path: Path, no_layers_left: None
) -> Checkout:
    (tmp_path / "certified").mkdir()
    return Checkout(launcher, certified(engine, image, tmp_path / "certified"))


@pytest.fixture
def compiling(engine: Engine, launcher: Launcher, tmp_path: Path, no_layers_left: None) -> Checkout:
    """With the image that has a compiler."""
    (tmp_path / "certified").mkdir()
    return Checkout(launcher, certified(engine, build_target(engine, "full"), tmp_path / "certified"))


@pytest.mark.parametrize("layout", ["src", "flat"])
def test_a_project_is_installed_with_its_extras_once_for_each_state(checkout: Checkout, layout: str) -> None:
    below = "src/" if layout == "src" else ""
    checkout.write({
        "pyproject.toml": PYPROJECT + (SRC if below else FLAT),
        f"{below}mine/__init__.py": "import six, einops\nSTATE = 1\n",
    })  # fmt: skip
    checkout.test("mine", "mine.STATE == 1")
    first = checkout.launch(".[more]")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "installing what the project requires into" in first.stderr
    assert "installing the project into" in first.stderr
    if layout == "src":
        return
    again = checkout.launch(".[more]")
    assert (again.returncode, "installing" in again.stderr) == (0, False), again.stderr

    checkout.write({f"{below}mine/__init__.py": "import six, einops\nSTATE = 2\n"})
    checkout.test("mine", "mine.STATE == 2")
    changed = checkout.launch(".[more]")
    assert changed.returncode == 0, changed.stdout + changed.stderr
    assert "installing the project into" in changed.stderr
    assert "what the project requires" not in changed.stderr


def test_only_files_that_git_knows_or_does_not_ignore_count(checkout: Checkout) -> None:
    checkout.write({
        "pyproject.toml": PYPROJECT + FLAT,
        "mine/__init__.py": "",
        ".gitignore": "results\nmine/ignored.py\n",
        "mine/ignored.py": "",
    })  # fmt: skip
    checkout.test("importlib.util", "importlib.util.find_spec('mine.ignored') is not None")
    subprocess.run(["git", "init", "-q", checkout.folder], check=True)
    assert checkout.launch(".").returncode == 0  # of the checkout, which comes first in a flat layout
    checkout.test(
        "importlib.metadata", "not [f for f in importlib.metadata.files('mine') if 'ignored' in f.name]"
    )
    done = checkout.launch(".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_compiled_module_of_a_flat_layout(compiling: Checkout) -> None:
    compiling.write({
        "pyproject.toml": PYPROJECT + FLAT, "setup.py": EXTENSION, "mine/fast.c": FAST, "mine/__init__.py": "",
    })  # fmt: skip
    compiling.test("mine.fast", "mine.fast.ANSWER == 42")
    done = compiling.launch(".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_module_that_is_built_against_torch(compiling: Checkout) -> None:
    compiling.write({
        "pyproject.toml": PYPROJECT.replace('"setuptools>=64"', '"setuptools>=64", "torch"') + FLAT,
        "setup.py": TORCH_EXTENSION, "mine/fast.c": FAST, "mine/__init__.py": "",
    })  # fmt: skip
    compiling.test("mine.fast", "mine.fast.ANSWER == 42")
    done = compiling.launch(".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_compiler_the_message_says_what_to_choose(checkout: Checkout) -> None:
    checkout.write({
        "pyproject.toml": PYPROJECT + FLAT, "setup.py": EXTENSION, "mine/fast.c": FAST, "mine/__init__.py": "",
    })  # fmt: skip
    checkout.test("mine", "True")
    done = checkout.launch(".")
    assert done.returncode == 4, done.stdout + done.stderr
    assert f"--project {checkout.folder} cannot be installed into the image:" in done.stderr
    assert "choose --target full" in done.stderr


def test_the_command_of_the_page(checkout: Checkout, engine: Engine) -> None:
    """The image in place of the released one, which it names."""
    checkout.write({
        "pyproject.toml": PYPROJECT.replace(".more", ".test") + FLAT, "mine/__init__.py": "import einops\n",
    })  # fmt: skip
    checkout.test("mine", "mine.einops")
    ((typed, _),) = commands(blocks("docs/image.md", "Run your tests in it"))
    engine.client().images.get(checkout.image).tag("ghcr.io/org/dist-tests", f"{disttest.__version__}-cpu")
    program, command, *words = shlex.split(typed)
    done = checkout.launcher.run(*words, timeout_s=300)
    assert (program, command, done.returncode) == ("disttest", "launch", 0), done.stdout + done.stderr


def test_a_folder_without_a_project(launcher: Launcher, probe: str) -> None:
    done = launcher.run("--image", probe, "--gpus=none", "--project=.", launcher.script("print('ran')"))
    assert done.returncode == 4
    assert "has neither a pyproject.toml nor a setup.py" in done.stderr
