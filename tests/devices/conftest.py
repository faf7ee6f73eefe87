"""Fixtures of the device tests: a fake driver, and the machine that it shows."""

from __future__ import annotations

import pytest
from fake_driver import FakeDriver

from disttest.host.devices import detect_machine


@pytest.fixture
def fake(tmp_path):
    """Make a fake driver from facts."""

    def make(facts, name="driver"):
        return FakeDriver(tmp_path / name, facts)

    return make


@pytest.fixture
def detect(tmp_path):
    """Detect the machine that a fake driver shows, with an otherwise empty file system."""

    def run(driver, *, root=None, stall_s=5.0):
        return detect_machine(library=str(driver.library), root=root or tmp_path / "empty", stall_s=stall_s)

    return run
