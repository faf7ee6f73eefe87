"""A driver, or a GPU, that torch cannot use: the machine's fault, told before the first test starts."""

from __future__ import annotations

import json
import re

import fake_driver as fakes
import pytest

from disttest.model import Outcome

RANKS = """
import pytest

@pytest.mark.world_size(2)
def test_never_started(world):
    raise AssertionError("this test was started")
"""


@pytest.fixture
def machine(cuda, tmp_path):
    """Run on a machine whose NVML shows what it is told; torch sees as many emulated GPUs as said."""

    def run(facts, *, torch_sees=0, how="run"):
        driver = fakes.FakeDriver(tmp_path / "driver", facts)
        probe = json.dumps({"library": str(driver.library), "compute": "cuda"})
        work = tmp_path / "work"
        work.mkdir()
        lab = cuda.lab(
            work, gpus=torch_sees, DISTTEST_PROBE=probe, DISTTEST_LEASE_DIR=str(tmp_path / "leases")
        )
        lab.write(test_gpu=RANKS)
        return lab.run("run", ".") if how == "run" else lab.pytest(".")

    return run


@pytest.mark.parametrize("how", ["run", "pytest"])
def test_a_driver_that_is_too_old_ends_the_run_with_both_versions(machine, how):
    ended = machine(fakes.eight_h100(), how=how)

    assert ended.exit_code == 7, ended.output
    assert "built for CUDA 13.0" in ended.output
    assert "driver 550.54.15 serves up to CUDA 12.4: the driver is too old" in ended.output
    assert "Update the driver of the host, or use an image with an older CUDA" in ended.output
    assert "this test was started" not in ended.output


def test_gpus_that_torch_does_not_see_end_the_run(machine):
    ended = machine({**fakes.plain(2), **fakes.driver(2, version="580.65.06", cuda=13000)})

    assert ended.exit_code == 7, ended.output
    assert re.search(r"torch 2\.\d+\.\d+\+cu130 was built for CUDA 13\.0", ended.output)
    assert "driver 580.65.06 serves up to CUDA 13.0" in ended.output
    assert "this test was started" not in ended.output
    assert Outcome.PASSED not in {test.final.outcome for test in ended.run.tests}
