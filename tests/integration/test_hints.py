"""Hints below failures, and variables of another launcher, as users meet them."""

from __future__ import annotations

import pytest

PROGRAM = """
    import os
    import socket
    import unittest

    import pytest
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_port(world):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            dist.TCPStore("127.0.0.1", taken.getsockname()[1], 1, True)

    @pytest.mark.world_size(2)
    def test_second_group(world):
        dist.init_process_group("gloo")

    @pytest.mark.world_size(2)
    class TestUnit(unittest.TestCase):
        def test_no_group(self):
            dist.barrier()

    @pytest.mark.world_size(2)
    def test_own_folder(world, tmp_path):
        if world.rank == 0:
            (tmp_path / "model").touch()
        dist.barrier()
        open(tmp_path / "model").close()

    @pytest.mark.world_size(2)
    def test_kernel(world):
        where = "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0]"
        if world.rank == 1:
            os.write(2, f"{where} Assertion `index < sizes[i]` failed.\\n".encode())
            raise RuntimeError("CUDA error: device-side assert triggered")

    @pytest.mark.world_size(2)
    def test_own_rank(world):
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(world.rank), "2")
        assert "SLURM_PROCID" not in os.environ

    def test_no_rank():
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
        dist.destroy_process_group()
        assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID"} & os.environ.keys()
        assert os.environ["SLURM_JOB_ID"] == "99"
"""
LAUNCHED = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "3",
    "MASTER_ADDR": "node17",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "99",
}


@pytest.fixture
def ended(lab):
    lab.write(test_hinted=PROGRAM)
    return lab.run("run", ".", "--timeout", "30", **LAUNCHED)


def test_what_users_see(ended):
    hints = {
        "test_port": "--slots 1",
        "test_second_group": "the fixture world has made the default process group",
        "test_no_group": '@pytest.mark.usefixtures("world")',
        "test_kernel": "the kernel found that `index < sizes[i]` does not hold (IndexKernel.cu:111)",
        "test_own_folder": "use the fixture world_tmp_path",
    }
    junit = " ".join(part or "" for part in ended.junit().itertext())
    for test, words in hints.items():
        section = ended.result(test).sections["hints"]
        assert section.title.startswith("hint: ")
        assert words in section.title
        assert section.title in junit
        assert section.title in ended.output
    assert all(ended.result(test).outcome.is_bad for test in hints)

    for test in ("test_own_rank", "test_no_rank"):
        assert not ended.result(test).outcome.is_bad, ended.result(test).message
    assert (
        "hidden from the tests, because torchrun set them for its own ranks: RANK, LOCAL_RANK, WORLD_SIZE"
        in ended.output
    )
    assert "because srun set them for its own ranks: SLURM_PROCID, SLURM_NTASKS" in ended.output
