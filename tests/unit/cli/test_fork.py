"""Which commands a resident parent's fork takes, however they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttest.extras.resident.fork import terms_of_fork
from disttest.extras.resident.messages import ForkTerms


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--resident", ".", "--seed", "7"),
        (".", "--seed", "7", "--resident"),
        ("smoke", "--resident", "--seed", "7", "--", "-k", "reduce"),
        ("record", ".", "--resident", "--seed", "7"),
    ],
)
def test_a_run_that_asks_for_it(words: tuple[str, ...]):
    assert terms_of_fork(words) == ForkTerms(seed=7)


@pytest.mark.parametrize(
    "words",
    [
        (".",),
        ("run", ".", "--resident", "--setup", "x.sh"),
        ("run", ".", "--resident", "--no-such-option"),
        ("list", ".", "--resident"),
        ("resident", "stop"),
        ("--help",),
        (),
    ],
)
def test_what_is_left_to_the_command(words: tuple[str, ...]):
    assert terms_of_fork(words) is None
