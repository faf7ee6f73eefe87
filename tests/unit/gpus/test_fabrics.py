"""RDMA devices from files, as the kernel shows them."""

from __future__ import annotations

import pytest

from disttest.plugins.gpus.detect import detect_fabrics


@pytest.fixture
def root(tmp_path):
    """Write files below a root."""

    def make(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def test_rdma_devices(root):
    folder = root(
        {
            "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
            "sys/class/infiniband/mlx5_1/ports/1/link_layer": "Ethernet\n",
            "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
            "sys/class/infiniband/rdmap0s6/device/vendor": "0x1d0f\n",
        }
    )

    found = [(fabric.name, fabric.kind, fabric.state) for fabric in detect_fabrics(folder)]

    assert found == [
        ("mlx5_0", "infiniband", "ACTIVE"),
        ("mlx5_1", "roce", "DOWN"),
        ("rdmap0s6", "efa", ""),
    ]
