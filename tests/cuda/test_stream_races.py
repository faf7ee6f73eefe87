"""Races between streams over NCCL, on emulated GPUs: what one of them waits for, another one may use too early."""

from __future__ import annotations

import pytest
from lab import Ended
from planted import NO_RACES_ON_DEVICES, RACES_ON_DEVICES, Program, run_on_devices, wrong


@pytest.fixture(scope="module")
def raced(cuda_labs) -> Ended:
    lab = cuda_labs(gpus=2)
    return run_on_devices(
        lab, (*RACES_ON_DEVICES, *NO_RACES_ON_DEVICES), "--sanitize", "race:warn", limit_s=300
    )


def test_races_of_streams_are_found(raced):
    assert wrong(raced.run, RACES_ON_DEVICES, Program.check_order) == {}


def test_nothing_is_said_of_streams_that_wait(raced):
    assert wrong(raced.run, NO_RACES_ON_DEVICES, Program.check_quiet) == {}


def test_what_observers_put_into_torch_is_no_leak_of_the_test(raced):
    notes = [note for test in raced.run.tests for note in test.final.notes]

    assert [note for note in notes if "function" in note or "torch mode" in note] == []
