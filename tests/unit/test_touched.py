"""tools/touched.py: which tests a change touches beside the unit tests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def touched():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        module = importlib.import_module("touched")
    yield lambda *changed: [
        str(test.relative_to(ROOT / "tests")) for test in module.touched([ROOT / each for each in changed])
    ]
    sys.modules.pop("touched")


@pytest.mark.slow("reads all code")
@pytest.mark.parametrize(
    ("changed", "first"),
    [
        ("tests/core/test_retries.py", "core/test_retries.py"),
        ("entrypoint/disttest/runtime/controller/retries.py", "core/test_retries.py"),
        ("entrypoint/disttest/extras/replay/player.py", "integration/test_replay.py"),
        ("tests/support/planted.py", "integration/test_planted.py"),
        ("docs/adopt.md", "integration/test_adopt.py"),
        ("docs/troubleshooting.md", "contract/test_troubleshooting.py"),
    ],
)
def test_the_surest_comes_first(touched, changed, first):
    assert first == touched(changed)[0]


def test_what_has_changed_itself_comes_before_what_is_named_after_a_module(touched):
    found = touched("entrypoint/disttest/extras/replay/player.py", "tests/contract/test_pins.py")

    assert ["contract/test_pins.py", "integration/test_replay.py"] == found[:2]


def test_a_package_stands_for_its_modules(touched):
    """``from disttest.model import Outcome`` reads model/rank_record.py."""
    assert "integration/test_fault_matrix.py" in touched("entrypoint/disttest/model/rank_record.py")


def test_helpers_hand_on_what_they_import(touched):
    assert "integration/test_fault_matrix.py" in touched("tests/support/fault_matrix.py")


def test_a_conftest_touches_the_tests_beside_it_only(touched):
    beside = touched("tests/core/conftest.py")

    assert "core/test_retries.py" in beside
    assert [] == [each for each in beside if not each.startswith("core/")]


def test_what_no_test_knows_touches_none(touched):
    assert [] == touched(".editorconfig", "entrypoint/disttest/extras/container/engine.py")
