"""A real srun with pyxis' options: it takes ours, and they reach every node. No container is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_programs import SPAN
from slurm_cluster import SlurmCluster, need_commands, slurm_cluster

from .conftest import ClusterLab

SOURCE = Path(__file__).parents[1] / "support" / "pyxis_stand_in.c"
ASKS = """
    import os
    import pytest

    @pytest.mark.world_size(4)
    def test_asks(world):
        here = os.getcwd()
        assert os.environ["STAND_IN_IMAGE"] == "org/tests:1"
        assert os.environ["STAND_IN_MOUNTS"] == f"{here}:{here},/data:/data,/from:/to"
        assert os.environ["STAND_IN_WORKDIR"] == here
        assert os.environ["STAND_IN_NO_HOME"] == "1"
"""


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    """One with the plugin."""
    need_commands("gcc")
    with slurm_cluster(prepare=_add_plugin) as started:
        yield started
        started.wait_until_free()


def _add_plugin(cluster: SlurmCluster) -> None:
    library = cluster.folder / "pyxis.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, SOURCE], check=True, timeout=60)
    (cluster.folder / "plugstack.conf").write_text(f"required {library}\n")


def test_its_options_reach_every_node(lab: ClusterLab) -> None:
    image = ("--image", "org/tests:1", "--mount", "/data", "--mount", "/from:/to")
    agent = {"DISTTEST_NODE_COMMAND": f"{sys.executable} -m disttest node-agent"}
    run = lab.write(test_asks=ASKS).on_slurm("test_asks.py", *SPAN, *image, **agent).wait()
    assert run.exit_code == 0, run.output
    assert {rank.node for rank in run.result("test_asks[4").ranks} == {"n1", "n2"}
