"""The figures of the structure: they may become better, and never worse unseen."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "structure.py"


@pytest.fixture
def structure(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("structure", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    package = tmp_path / "entrypoint" / "disttest"
    (package / "extras" / "chaos").mkdir(parents=True)
    (package / "core.py").write_text('"""Runs tests."""\n\nimport gc\n\ngc.freeze()\n')
    (package / "extras" / "chaos" / "hooks.py").write_text('"""What chaos does."""\n\nCHAOS = 1\n')
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "PACKAGE", package)
    monkeypatch.setattr(module, "LIMITS", tmp_path / "structure.json")
    monkeypatch.setattr(sys, "argv", ["structure.py"])
    module.LIMITS.write_text(json.dumps(module.figures()))
    return module


def test_a_feature_belongs_into_a_plugin(structure, capsys):
    assert 0 == structure.main()
    (structure.PACKAGE / "core.py").write_text('"""Runs chaos."""\n')

    assert 1 == structure.main()
    assert "allows less of: modules of the core that name a feature" in capsys.readouterr().out


def test_the_core_may_grow_by_a_repair_and_not_by_a_feature(structure):
    text = (structure.PACKAGE / "core.py").read_text()
    (structure.PACKAGE / "core.py").write_text(text + "x = 1\n" * structure.TOLERATED)
    assert 0 == structure.main()

    (structure.PACKAGE / "core.py").write_text(text + "x = 1\n" * (structure.TOLERATED + 1))
    assert 1 == structure.main()


def test_an_update_keeps_what_has_become_better(structure, monkeypatch):
    (structure.PACKAGE / "core.py").write_text('"""Runs tests."""\n')
    monkeypatch.setattr(sys, "argv", ["structure.py", "--update"])
    assert 0 == structure.main()

    kept = json.loads(structure.LIMITS.read_text())
    assert (0, 0) == (kept["lines of code of the core"], kept["calls of gc.freeze"])
