"""Type checkers accept what the README shows, and know every name of disttest.testing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import disttest.testing

ROOT = Path(__file__).resolve().parents[2]
PYRIGHT = Path(__file__).parent / "node_modules" / ".bin" / "pyright"
WRONG = "def test_wrong(world: World) -> None:\n    world.ranks\n"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = re.search(r"```python\n(# test_mine\.py\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    folder = tmp_path_factory.mktemp("typed")
    (folder / "test_mine.py").write_text(found[1])
    (folder / "test_wrong.py").write_text(found[1] + WRONG)
    names = "\n".join(f"reveal_type(disttest.testing.{name})" for name in disttest.testing.__all__)
    (folder / "all_names.py").write_text(f"import disttest.testing\n{names}\n")
    return folder


def test_mypy_is_strict_and_content(example: Path) -> None:
    def mypy(*names: str) -> str:
        command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={example}", *names]
        return subprocess.run(
            command, cwd=example, capture_output=True, text=True, timeout=300, check=False
        ).stdout

    assert mypy("test_mine.py").startswith("Success"), mypy("test_mine.py")
    assert '"World" has no attribute "ranks"' in mypy("test_wrong.py")
    revealed = mypy("all_names.py")
    assert revealed.count("Revealed type is") == len(disttest.testing.__all__), revealed
    assert 'Revealed type is "Any"' not in revealed


def test_pyright_is_content(example: Path) -> None:
    (example / "pyrightconfig.json").write_text('{"include": ["test_*.py"]}')
    done = subprocess.run(
        [PYRIGHT, "--pythonpath", sys.executable, "--outputjson"],
        cwd=example, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    found = [
        (Path(each["file"]).name, each["rule"])
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    ]
    assert found == [("test_wrong.py", "reportAttributeAccessIssue")], done.stdout


@pytest.mark.parametrize("name", disttest.testing.__all__)
def test_every_name_of_the_stub_is_there(name: str) -> None:
    assert getattr(disttest.testing, name) is not None
