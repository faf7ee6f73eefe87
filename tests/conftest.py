"""What all tests share."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files anew instead of comparing"
    )
    parser.addoption(
        "--full",
        action="store_true",
        help="tests/compat: run torch's suites under torch's own harness too (an hour)",
    )
    parser.addoption(
        "--spawn",
        action="store_true",
        help="tests/compat --full: a new interpreter for each rank of torch's harness (hours)",
    )
    parser.addoption("--trials", type=int, default=10, help="tests/integration/test_cancel.py: how many")
    parser.addoption("--seed", type=int, default=1, help="… and from which seed")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "covers(*ids): behaviours of the catalogue that the test shows")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
