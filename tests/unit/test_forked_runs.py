"""Commands of tests that may run as forks: those that a resident parent could run."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_runs import may_fork


@pytest.mark.parametrize(
    ("words", "may"),
    [
        ("run test_a.py", True),
        ("test_a.py --slots 2", True),
        ("ddp", True),
        ("test_a.py -- --seed 3", True),  # pytest's
        ("list", False),
        ("doctor", False),
        ("test_a.py --seed 3", False),
        ("test_a.py --seed=3", False),
        ("test_a.py --launcher local --nodes 2", False),
        ("test_a.py --device emulated-cuda:2", False),
        ("test_a.py -p no:deadlock", False),
        ("", False),
    ],
)
def test_runs_may_be_forks_and_other_commands_may_not(tmp_path: Path, words: str, may: bool) -> None:
    assert may_fork(words.split(), tmp_path, {}) is may


def test_another_seed_needs_another_hash_seed(tmp_path: Path) -> None:
    assert not may_fork(["ddp"], tmp_path, {"DISTTEST_SEED": "3"})
    (tmp_path / "pyproject.toml").write_text("[tool.disttest]\nslots = 2\n")
    assert may_fork(["ddp"], tmp_path, {})
    (tmp_path / "pyproject.toml").write_text("[tool.disttest]\nseed = 3\n")
    assert not may_fork(["ddp"], tmp_path, {})
