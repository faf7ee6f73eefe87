"""A suite that this torch cannot run is one skip with a reason, and its files are not imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from disttest.runtime.supervisor.run_supervisor import plugin_arguments

ROOT = Path(__file__).resolve().parents[2]

WITHOUT = {
    "RPC": ("rpc dist_autograd", "import torch._C\ndel torch._C._rpc_init\n"),
    "FSDP": ("fsdp", "import torch.distributed.fsdp as fsdp\ndel fsdp.fully_shard\n"),
    "Dynamo": ("dynamo", "import sys\nsys.modules['torch._dynamo'] = None\n"),
}


@pytest.mark.parametrize("missing", WITHOUT)
def test_one_skip_for_a_suite_that_can_not_run(tmp_path: Path, missing: str) -> None:
    suites, plugin = WITHOUT[missing]
    (tmp_path / "poorer_torch.py").write_text(plugin)
    path = os.pathsep.join([str(ROOT / "entrypoint"), str(tmp_path)])
    command = [sys.executable, "-m", "pytest", *plugin_arguments(), "-p", "poorer_torch", "-q", "-rs"]
    ended = subprocess.run(
        [*command, *suites.split()],
        cwd=ROOT / "suites",
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    names = len(suites.split())
    assert f"{names} skipped" in ended.stdout, ended.stdout + ended.stderr
    assert missing in ended.stdout
    assert "Error" not in ended.stdout
    assert ended.returncode == 0


def test_strict_makes_a_suite_that_can_not_run_an_error(lab) -> None:
    (lab.folder / "poorer_torch.py").write_text(WITHOUT["RPC"][1])
    path = os.pathsep.join([*filter(None, sys.path), str(lab.folder)])
    ended = lab.run("rpc", "--strict", "--", "-p", "poorer_torch", PYTHONPATH=path)

    assert ended.exit_code == 6, ended.output
    assert "--strict: no test of rpc ran, 1 were skipped: most often (1 times) because" in ended.output
