"""The logs that leave a node."""

from __future__ import annotations

from pathlib import Path

from disttest.extras.cluster.node.partition import GREEN_LIMIT, log_texts
from disttest.model import Outcome, RankEnd, RankRecord


def record(rank: int, **facts: object) -> RankRecord:
    green = {"end": RankEnd.REPORTED, "outcome": Outcome.PASSED}
    return RankRecord(rank=rank, log=f"logs/rank{rank}.log", **{**green, **facts})


def sent(results: Path, *records: RankRecord) -> dict[str, str]:
    return {text.path: text.text for text in log_texts(results, records)}


def test_a_log_that_is_empty_is_sent_and_one_that_is_missing_is_not(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/rank0.log").touch()
    assert sent(tmp_path, record(0), record(1)) == {"logs/rank0.log": ""}


def test_a_long_log_of_a_rank_that_passed_keeps_less_than_that_of_one_that_failed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for rank in (0, 1):
        (tmp_path / f"logs/rank{rank}.log").write_text("x" * 3 * GREEN_LIMIT)
    texts = sent(tmp_path, record(0), record(1, outcome=Outcome.FAILED))
    assert "[disttest: 65536 bytes stayed on the node]" in texts["logs/rank0.log"]
    assert texts["logs/rank1.log"] == "x" * 3 * GREEN_LIMIT
