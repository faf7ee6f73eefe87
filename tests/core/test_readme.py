"""The README's first screen, typed literally in an empty folder by somebody who has Python and nothing of ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from documents import ROOT, blocks, commands, write_files
from environments import make_environment, packages_but_ours, uv
from typed import said


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this repository as they stand, in a repository that can be cloned."""
    folder = tmp_path_factory.mktemp("repository")
    listed = _git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        source = ROOT / name
        if source.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
    _git(folder, "init", "--quiet")
    _git(folder, "add", "--all")
    _git(folder, "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "-m", "all")
    return folder


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def provide(python: Path, name: str, start: str) -> None:
    """Put a program beside an interpreter, as an installer would; ``start`` is ``MODULE:FUNCTION``."""
    module, function = start.split(":")
    program = python.parent / name
    program.write_text(f"#!{python}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    program.chmod(0o755)


class Newcomer:
    """Somebody with an environment that has torch and pytest, and with an empty folder."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.python = make_environment(folder / "environment", packages_but_ours(folder / "packages"))
        for name, start in (("pip", "pip._internal.cli.main:main"), ("pytest", "pytest:console_main")):
            provide(self.python, name, start)
        self.folder = folder / "empty"
        self.folder.mkdir()
        scripts = str(self.python.parent)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))
        }
        self.environ = {**kept, "PATH": f"{scripts}{os.pathsep}{kept['PATH']}", "NO_COLOR": "1", **environ}

    def types(self, text: str, folder: Path | None = None) -> str:
        """Type it there, or in another folder."""
        return said(text, folder or self.folder, self.environ)


@pytest.mark.slow("installs into an empty environment")
def test_the_first_screen_works_from_a_clone_and_literally(tmp_path: Path, repository: Path) -> None:
    somebody = Newcomer(tmp_path)
    first_screen = blocks("README.md", "Your own tests")
    write_files(first_screen, somebody.folder)
    (install, _), (run, _) = commands(first_screen)
    from_the_clone = somebody.types(install, repository)
    somebody.types("pip uninstall --yes dist-tests")
    by_the_tutorial = somebody.types(blocks("docs/tutorial.md", "Install")[0].text, repository)

    assert "Successfully installed dist-tests-" in from_the_clone
    assert "Successfully installed dist-tests-" in by_the_tutorial
    for command in (run, "pytest test_mine.py"):
        ran = somebody.types(command)
        assert "2 passed" in ran, ran
    where = somebody.types("python -c 'import disttest; print(disttest.__file__)'")
    assert where.startswith(str(tmp_path / "environment")), "not the working copy of the tests"


@pytest.mark.slow("runs a bundled suite in three sizes")
def test_a_suite_runs_from_a_clone_by_one_command(repository: Path) -> None:
    """In an environment that is there already; one file of the suite is enough."""
    (typed, _), _ = commands(blocks("README.md", "Try it"))
    provide(make_environment(repository / ".venv"), "disttest", "disttest.__main__:main")
    (repository / ".venv/.ready").touch()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "MAKE"))}

    assert "\npassed: " in said(typed, repository, {**environ, "PYTEST_ADDOPTS": "-k test_buffers"})
    worlds = {path.name.partition("xgloo")[0][-1] for path in (repository / "results/logs").iterdir()}
    assert {"1", "2", "4"} == worlds
    for name in ("junit.xml", "summary.md", "results.json", "events.jsonl"):
        assert (repository / "results" / name).is_file()


@pytest.mark.slow("builds a wheel and installs it")
def test_the_wheel_installs_from_an_index_by_the_name_of_the_readme(tmp_path: Path, repository: Path) -> None:
    name = re.search(r"The distribution is called `([a-z-]+)`", (ROOT / "README.md").read_text())
    assert name, "the README names the distribution"
    page = tmp_path / "index" / "dist-tests"
    uv("build", "--quiet", "--wheel", "--out-dir", page, repository)
    (wheel,) = page.glob("*.whl")
    (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    somebody = Newcomer(tmp_path, PIP_INDEX_URL=f"file://{tmp_path / 'index'}", PIP_EXTRA_INDEX_URL="")

    said = somebody.types(f"pip install '{name[1]}[torch]'")

    assert "Successfully installed dist-tests-" in said
    found = somebody.types(
        "disttest list smoke; python -c 'import disttest, expecttest; print(disttest.__path__[0])'"
    )
    assert found.startswith("suite"), found
    assert "smoke  " in found
    package = Path(found.splitlines()[-1])
    assert package.is_relative_to(tmp_path / "environment"), "not the working copy of the tests"
    assert {"py.typed", "suites"} <= {path.name for path in package.iterdir()}
    assert "passed: 2 passed" in somebody.types("disttest init && disttest run tests/test_ranks.py")
