"""An attempt as plugins see it when they judge it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from disttest.runtime.world.judged_attempt import JudgedAttempt


def attempt_of(*sent: Mapping[str, object] | None) -> JudgedAttempt:
    """An attempt whose ranks sent such reports; a rank with None is not done."""
    ranks = [
        SimpleNamespace(
            rank=number,
            done=None
            if reports is None
            else SimpleNamespace(seen={name: json.dumps(each).encode() for name, each in reports.items()}),
        )
        for number, reports in enumerate(sent)
    ]
    attempt = SimpleNamespace(ranks=ranks)
    return JudgedAttempt(attempt, "w1", SimpleNamespace(), place=Path, clear=tuple)


def test_reports_are_those_of_the_ranks_that_sent_one_under_the_name() -> None:
    judged = attempt_of({"order": [1]}, None, {"memory": [9]}, {"order": [3], "memory": [4]})

    assert judged.reports("order", list[int]) == {0: [1], 3: [3]}
    assert judged.reports("memory", list[int]) == {2: [9], 3: [4]}
