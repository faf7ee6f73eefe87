"""Which worlds connect lazily, unless the user has decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttest.model import WorldShape
from disttest.options.run import resolve_options
from disttest.plugins.wide_worlds.hooks import MOST_CONNECTED
from disttest.runtime.rank.rank_spec import RankSpec

NOWHERE = Path("/nowhere")
VARIABLE = "TORCH_GLOO_LAZY_INIT"


def environment(size: int) -> dict[str, str]:
    return RankSpec(
        rank=0,
        shape=WorldShape(size=size, backend="gloo", device="cpu"),
        world_id="w1",
        world_pid=1,
        master_port=0,
        devices=(),
        stacks=NOWHERE,
        questions=NOWHERE,
        phases=NOWHERE,
        scratch=NOWHERE,
        log=NOWHERE,
        settings=resolve_options({}, environ={}).for_worlds(),
        threads=1,
    ).environment()


def test_only_large_worlds_connect_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    assert VARIABLE not in environment(MOST_CONNECTED)
    assert "1" == environment(MOST_CONNECTED + 1)[VARIABLE]


@pytest.mark.parametrize("size", [2, MOST_CONNECTED + 1])
@pytest.mark.parametrize("value", ["0", "1"])
def test_the_users_value_wins(monkeypatch: pytest.MonkeyPatch, size: int, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)

    assert value == environment(size).get(VARIABLE, value)
