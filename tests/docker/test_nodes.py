"""Node agents in containers: `--container docker` with the real image, and a stub in place of Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from engine import ROOT, Engine, docker_command

from disttest.model import Outcome
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, read_events

STUB = ROOT / "tests" / "support" / "slurm_stub" / "stub.py"
TESTS = """
    import os
    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    @pytest.mark.nodes(2)
    def test_over_two_containers(world):
        everyone = [None, None]
        dist.all_gather_object(everyone, os.environ["DISTTEST_IMAGE"])
        assert everyone == ["1", "1"]
        assert os.environ["GROUP_RANK"] == str(world.rank)
        print("rank", world.rank, "of", os.environ["PASSED"], os.environ.get("GITHUB_TOKEN", "no token"))

    def test_in_one_container(world):
        dist.barrier()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nodes")
    for parent in (made, *made.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    (made / "test_nodes.py").write_text(textwrap.dedent(TESTS))
    (made / "bin").mkdir()
    for name in ("srun", "sinfo", "squeue", "scontrol", "scancel"):
        (made / "bin" / name).symlink_to(STUB)
    (made / "bin" / "docker").symlink_to(shutil.which(docker_command()) or "docker")
    return made


@pytest.fixture(scope="module")
def ended(engine: Engine, image: str, folder: Path) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in engine.environment().items() if not k.startswith(("DISTTEST_", "SLURM_"))}
    return subprocess.run(
        [
            *(sys.executable, "-m", "disttest", "run", "test_nodes.py", "--launcher", "slurm"),
            *("--image", image, "--container", "docker", "--pass-env", "PASSED", "--device", "cpu"),
        ],
        cwd=folder,
        env={
            **clean,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "STUB_LOG": str(folder / "asked"),
            "PASSED": "what was passed",
            "GITHUB_TOKEN": "a secret",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_in(folder: Path) -> RunResult:
    return fold(read_events(folder / "results" / FILE_NAME))


def test_a_world_over_two_containers_passes(ended: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run = run_in(folder)
    assert [Outcome.PASSED] * 2 == [test.final.outcome for test in run.tests]
    over = next(test.final for test in run.tests if "two_containers" in test.test.nodeid)
    assert ["stub0", "stub1"] == [rank.node for rank in over.ranks]
    assert "rank 1 of what was passed no token" in (folder / "results" / over.ranks[1].log).read_text()


def test_nothing_is_left(ended: subprocess.CompletedProcess[str], engine: Engine, folder: Path) -> None:
    assert ended.returncode == 0
    left = engine.client().containers.list(all=True, filters={"label": "io.disttest.job"})
    assert [] == [container.name for container in left]
    asked = [json.loads(line) for line in (folder / "asked").read_text().splitlines()]
    submitted = [words for words in asked if "docker" in words]
    assert sorted([2, 1]) == sorted(
        int(word.removeprefix("--nodes=")) for words in submitted for word in words if "--nodes=" in word
    )
