"""The result of a preflight."""

from __future__ import annotations

import pytest

from disttest.plugins.gpus.preflight.messages import Check, PreflightResult


@pytest.mark.parametrize(
    ("outcomes", "passed"), [((), True), ((True, True), True), ((True, False), False), ((False,), False)]
)
def test_one_failed_check_fails_it(outcomes: tuple[bool, ...], passed: bool) -> None:
    checks = tuple(Check(check="matmul", devices=("gpu:0",), label="GPU 0", passed=each) for each in outcomes)

    assert PreflightResult(checks=checks).passed is passed
