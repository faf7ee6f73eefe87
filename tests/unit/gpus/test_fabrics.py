"""RDMA devices from files, as the kernel shows them."""

from __future__ import annotations

from disttest.plugins.gpus.detect import detect_fabrics


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
