"""CPU, memory and limits from files, as cgroup v1 and v2 show them."""

from __future__ import annotations

import os

import pytest

from disttest.host.cpu import (
    cgroup_version,
    detect_cgroups,
    detect_cpu,
    detect_limits,
)
from disttest.host.machine import CpuShare

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_CPU = "33 32 0:30 {root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
V1_MEMORY = "34 32 0:31 {root} /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory\n"


def cpu_of(root):
    return detect_cpu(detect_cgroups(root))


def memory_of(root):
    return detect_limits(detect_cgroups(root), root).memory


def test_v2_quota_and_memory(root):
    folder = root(
        {
            "proc/self/mountinfo": V2,
            "proc/self/cgroup": "0::/\n",
            "proc/meminfo": "MemTotal:       16384000 kB\n",
            "sys/fs/cgroup/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/memory.max": "1073741824\n",
        }
    )

    assert cpu_of(folder).quota == 2.5
    assert memory_of(folder) == 1 << 30
    assert cgroup_version(detect_cgroups(folder)) == "v2"


def test_v2_every_group_above_limits_too(root):
    folder = root(
        {
            "proc/self/mountinfo": V2,
            "proc/self/cgroup": "0::/pods/mine\n",
            "proc/meminfo": "MemTotal: 16384000 kB\n",
            "sys/fs/cgroup/pods/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pods/memory.max": "2000000\n",
            "sys/fs/cgroup/pods/mine/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pods/mine/memory.max": "3000000\n",
        }
    )

    assert cpu_of(folder).quota == 1.5
    assert memory_of(folder) == 2_000_000


def test_v2_without_limits(root):
    folder = root(
        {
            "proc/self/mountinfo": V2,
            "proc/self/cgroup": "0::/\n",
            "proc/meminfo": "MemTotal: 1000 kB\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/memory.max": "max\n",
        }
    )

    assert cpu_of(folder).quota is None
    assert memory_of(folder) == 1000 * 1024


@pytest.mark.parametrize(("mounted", "place"), [("/", "docker/abc"), ("/docker/abc", "")])
def test_v1_with_and_without_its_own_namespace(root, mounted, place):
    folder = root(
        {
            "proc/self/mountinfo": V1_CPU.format(root=mounted) + V1_MEMORY.format(root=mounted),
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            "proc/meminfo": "MemTotal: 16384000 kB\n",
            f"sys/fs/cgroup/cpu,cpuacct/{place}/cpu.cfs_quota_us": "300000\n",
            f"sys/fs/cgroup/cpu,cpuacct/{place}/cpu.cfs_period_us": "100000\n",
            f"sys/fs/cgroup/memory/{place}/memory.limit_in_bytes": "536870912\n",
        }
    )

    assert cpu_of(folder).quota == 3.0
    assert memory_of(folder) == 512 << 20
    assert cgroup_version(detect_cgroups(folder)) == "v1"


def test_v1_without_limits(root):
    folder = root(
        {
            "proc/self/mountinfo": V1_CPU.format(root="/") + V1_MEMORY.format(root="/"),
            "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/\n",
            "proc/meminfo": "MemTotal: 1000 kB\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        }
    )

    assert cpu_of(folder).quota is None
    assert memory_of(folder) == 1000 * 1024


def test_both_versions_are_a_hybrid(root):
    mounts = V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified") + V1_CPU.format(root="/")
    folder = root({"proc/self/mountinfo": mounts, "proc/self/cgroup": "3:cpu,cpuacct:/\n0::/\n"})

    assert cgroup_version(detect_cgroups(folder)) == "hybrid"


def test_nonsense_and_nothing(root):
    files = {
        "proc/self/mountinfo": "x\n" + V2,
        "proc/self/cgroup": "0::/../../up\n",
        "sys/fs/cgroup/cpu.max": "x",
    }
    folder = root(files)

    assert cpu_of(folder).quota is None
    assert detect_cgroups(folder / "nowhere") == ()


def test_affinity_counts():
    assert detect_cpu(()).affinity == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("affinity", "quota", "granted"), [(8, None, 8), (8, 2.0, 2), (8, 2.9, 2), (8, 0.5, 1), (2, 6.0, 2)]
)
def test_what_is_granted(affinity, quota, granted):
    assert CpuShare(online=8, affinity=affinity, quota=quota).granted == granted
