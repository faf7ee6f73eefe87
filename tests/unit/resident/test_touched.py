"""Which test files a saved file touches."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttest.extras.resident.touched import find_touched, read_names

SOURCES = {
    "src/models/__init__.py": "",
    "src/models/step.py": "import torch\n",
    "src/models/train.py": "from .step import run\n",
    "src/loop.py": "def go():\n    import models.train\n",
    "src/worker.py": "",
    "src/plugin.py": "",
    "src/alone.py": "",
    "tests/conftest.py": "pytest_plugins = ['plugin']\n",
    "tests/test_step.py": "from models import step\n",
    "tests/test_loop.py": "import loop\n",
    "tests/unit/test_worker.py": "SCRIPT = 'src/worker.py'\n",
    "tests/test_broken.py": "def (\n",
    "other/test_other.py": "",
}
ALL = sorted(Path(path) for path in SOURCES if path.startswith("tests/") and "test_" in path)


@pytest.fixture
def touched(tmp_path: Path):
    for path, source in SOURCES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    names = {Path(path): read_names(tmp_path / path) for path in SOURCES}
    tests = [Path(path) for path in SOURCES if Path(path).name.startswith("test_")]

    def find(*saved: str) -> list[Path] | None:
        found = find_touched([Path(path) for path in saved], tests, names)
        return None if found is None else sorted(found)

    return find


def test_a_test_file_touches_itself(touched):
    assert [Path("tests/test_loop.py")] == touched("tests/test_loop.py")


def test_a_module_touches_those_that_lead_to_it(touched):
    assert [Path("tests/test_loop.py"), Path("tests/test_step.py")] == touched("src/models/step.py")
    assert [Path("tests/test_loop.py")] == touched("src/models/train.py")


def test_a_name_in_a_text_counts(touched):
    assert [Path("tests/unit/test_worker.py")] == touched("src/worker.py")


@pytest.mark.parametrize("saved", ["tests/conftest.py", "src/plugin.py"])
def test_a_conftest_and_what_it_names_touch_all_below_it(touched, saved: str):
    assert ALL == touched(saved)


@pytest.mark.parametrize("saved", ["src/alone.py", "pyproject.toml", "tests/test_new.py"])
def test_what_leads_nowhere_may_concern_everybody(touched, saved: str):
    assert touched(saved) is None
    assert touched("tests/test_loop.py", saved) is None
