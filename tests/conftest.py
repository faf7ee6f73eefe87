"""What all tests share."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from slow_tests import SlowTests
from thorough import Thorough, want_all

# How fast the machine is says nothing of the code, and a check says the same of one commit each time; soaks explore.
settings.register_profile(
    "here", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("here")
settings.register_profile("soak", max_examples=10_000, derandomize=False)
"""``make soak`` loads it: pytest --hypothesis-profile soak."""


# `nohup make test &` ignores SIGHUP and SIGINT, and programs that tests start would inherit that and never react to them.
# A handler is not inherited: started programs have the default, and this process still survives the signal.
for _signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, lambda *_: None)
os.umask(0o022)  # tests compare modes of files


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files anew instead of comparing"
    )
    parser.addoption(
        "--full",
        action="store_true",
        help="tests/compat, tests/cuda: run torch's suites under torch's own harness too (an hour)",
    )
    parser.addoption(
        "--thorough",
        action="store_true",
        help="every variant of each case, and the tests that are marked thorough",
    )
    parser.addoption(
        "--spawn",
        action="store_true",
        help="tests/compat --full: a new interpreter for each rank of torch's harness (hours)",
    )
    parser.addoption(
        "--real-gpus",
        action="store_true",
        help="tests/cuda: on this machine's GPUs and this interpreter's torch, not on emulated ones",
    )
    parser.addoption("--trials", type=int, help="how many, of tests with chance in them (default: a few)")
    parser.addoption("--seed", type=int, default=1, help="… and from which seed")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "covers(*ids): behaviours of the catalogue that the test shows")
    config.addinivalue_line(
        "markers", "forked_runs: runs are forks of a process with torch imported, if they can be"
    )
    config.addinivalue_line("markers", "slow(reason): why the test may take more processor time than others")
    config.addinivalue_line(
        "markers",
        "thorough(reason): runs only with --thorough; the reason says what shows the same in every run",
    )
    config.pluginmanager.register(Thorough())
    if config.getoption("--thorough"):
        want_all()
    if not any(config.getoption(name, None) for name in ("full", "trials", "hypothesis_profile")):  # soaks
        config.pluginmanager.register(SlowTests())


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
