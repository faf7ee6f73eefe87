"""The bundled suites: requests that they cannot serve are answered in one line; their tests share worlds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from disttest.runtime.supervisor.run_supervisor import plugin_arguments

ROOT = Path(__file__).resolve().parents[2]


def run_suite(*arguments: str) -> tuple[int, str]:
    path = os.pathsep.join([str(ROOT / "entrypoint"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            *plugin_arguments(),
            "-q",
            "-rs",
            *arguments,
        ],
        cwd=ROOT / "suites",
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["ucc", "nosuch"])
def test_backend_that_is_not_built_is_an_error_when_named(name):
    code, output = run_suite("smoke", "--disttest-backend", name, "--disttest-device", "cpu")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert f"--backend {name}: the installed torch has no such backend" in output


def test_backend_that_is_not_built_is_a_skip_when_a_test_wants_it():
    code, output = run_suite(
        "collectives/test_barriers.py",
        "-k",
        "finds_who_hangs",
        "--disttest-world-sizes",
        "2",
        "--disttest-device",
        "cpu",
    )
    assert code == pytest.ExitCode.OK
    assert "2 skipped" in output


def test_world_size_that_suits_no_test_says_so():
    code, output = run_suite(
        "collectives/test_point_to_point.py",
        "-k",
        "ring",
        "--disttest-world-sizes",
        "1",
        "--disttest-device",
        "cpu",
    )
    assert code == pytest.ExitCode.OK
    assert "none of the run's world sizes (1)" in output


def test_what_ranks_tell_each_other_costs_no_world(lab):
    """The suites exchange what they saw through the store; that is not taken for something that a test has left."""
    ended = lab.run("smoke", "ddp/test_hooks.py", "--world-sizes", "2", "--", "-k", "compressing or object")

    results = [test.final for test in ended.run.tests if test.final.world_id]
    leaks = {leak for result in results for rank in result.ranks for leak in rank.leaks}
    assert ended.exit_code == 0, ended.output
    assert set() == leaks
    assert 2 >= len({result.world_id for result in results}) < len(results)


def test_feature_that_the_table_does_not_know_is_an_error(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from suites.features import lacks

    assert lacks(("tags",), "gloo", "cpu") == ""
    assert lacks(("tags",), "nccl", "cuda").startswith("needs tags: NCCL")
    assert lacks(("cuda_tensors",), "gloo", "cpu")
    assert not lacks(("cuda_tensors",), "gloo", "cuda")
    with pytest.raises(KeyError, match="tagz"):
        lacks(("tagz",), "gloo", "cpu")
