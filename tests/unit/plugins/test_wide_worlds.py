"""Which worlds connect lazily, unless the user has decided."""

from __future__ import annotations

import pytest
from rank_specs import rank_spec

from disttest.model import WorldShape
from disttest.plugins.wide_worlds.hooks import MOST_CONNECTED

VARIABLE = "TORCH_GLOO_LAZY_INIT"


def environment(size: int) -> dict[str, str]:
    shape = WorldShape(size=size, backend="gloo", device="cpu")
    return rank_spec(shape=shape).environment()


def test_only_large_worlds_connect_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    assert VARIABLE not in environment(MOST_CONNECTED)
    assert "1" == environment(MOST_CONNECTED + 1)[VARIABLE]


@pytest.mark.parametrize("size", [2, MOST_CONNECTED + 1])
@pytest.mark.parametrize("value", ["0", "1"])
def test_the_users_value_wins(monkeypatch: pytest.MonkeyPatch, size: int, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)

    assert value == environment(size).get(VARIABLE, value)
