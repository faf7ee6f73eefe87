"""The bundled suites over NCCL, on emulated GPUs: what they say of the backend is what its real process group does."""

from __future__ import annotations

import pytest

LIMIT_S = 400
"""Alone on two cores the slowest needs less than a third."""


@pytest.mark.parametrize(
    ("suite", "sizes", "at_least"),
    [("smoke", "1,2,4", 18), ("collectives", "2,4", 600), ("ddp", "2,4", 530), ("fsdp", "2,4", 180)],
)
def test_every_test_passes_or_says_what_is_lacking(cuda, tmp_path, suite, sizes, at_least):
    ended = cuda.lab(tmp_path, gpus=4).run(
        "run", suite, "--world-sizes", sizes, "--backend", "nccl", limit_s=LIMIT_S
    )

    outcomes = [test.final.outcome.value for test in ended.run.tests]
    assert ended.exit_code == 0, ended.output
    assert set(outcomes) <= {"passed", "skipped"}
    assert outcomes.count("passed") >= at_least
