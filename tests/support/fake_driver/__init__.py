"""A fake NVIDIA driver: a shared object that exports NVML's functions and answers from a scenario file."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
GIB = 1 << 30

Facts = dict[str, object]


@functools.cache
def build() -> Path:
    """The compiled library, built once for each version of its source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"disttest-fake-nvml-{os.getuid()}-{digest}.so"
    if not built.exists():
        fresh = built.with_suffix(f".{os.getpid()}")
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            "-o",
            fresh,
            SOURCE,
            "-ldl",
        ]
        subprocess.run(command, check=True)
        fresh.rename(built)
    return built


class FakeDriver:
    """One machine: a folder with the library and its scenario, which may be changed at any time."""

    def __init__(self, folder: Path, facts: Facts | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.library = folder / "libnvidia-ml.so.1"
        # dladdr tells the library its own path, and so which scenario is its own: a link will do.
        self.library.symlink_to(build())
        self._scenario = folder / "scenario"
        self.facts: Facts = dict(facts or {})
        self.set({})

    def set(self, facts: Facts) -> None:
        """Change facts; None removes one."""
        self.facts.update(facts)
        lines = [f"{name}={value}" for name, value in self.facts.items() if value is not None]
        fresh = self._scenario.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.rename(self._scenario)


def driver(count: int, *, version: str = "550.54.15", cuda: int = 12040) -> Facts:
    """The facts of the driver itself."""
    return {"driver": version, "cuda": cuda, "nvml": f"12.{version}", "count": count}


def uuid(index: int) -> str:
    """UUID of a fake GPU."""
    return f"GPU-{index:08x}-1111-2222-3333-444455556666"


def bus(index: int) -> str:
    """Bus address of a fake GPU."""
    return f"00000000:{0x10 + index * 8:02X}:00.0"


def gpu(index: int, name: str = "NVIDIA H100 80GB HBM3", gib: int = 80, capability: str = "9.0") -> Facts:
    """The facts of one healthy, idle GPU."""
    facts = {
        "uuid": uuid(index),
        "name": name,
        "bus": bus(index),
        "minor": index,
        "memory_total": gib * GIB,
        "memory_reserved": 500 << 20,
        "memory_used": 4 << 20,
        "capability": capability,
        "persistence": 1,
        "compute_mode": 0,
        "mig_current": 0,
        "ecc": 1,
        "throttle": 1,
        "temperature_c": 31,
        "pcie_generation": 5,
        "pcie_width": 16,
        "pcie_max_generation": 5,
        "pcie_max_width": 16,
    }
    return {f"gpu.{index}.{fact}": value for fact, value in facts.items()}


def eight_h100() -> Facts:
    """An HGX board: every GPU reaches every other through NVSwitch, 18 links each."""
    facts = driver(8)
    for index in range(8):
        facts |= gpu(index) | {f"gpu.{index}.nvlink": "A" * 18}
        facts |= {f"gpu.{index}.nvlink_to": ",".join(f"00000000:C{link % 4}:00.0" for link in range(18))}
    return facts | {"p2p": 0, "path": 40}


def bridged_pairs(count: int = 4) -> Facts:
    """PCIe boards in NVLink-bridged pairs: 0-1, 2-3, …"""
    facts = driver(count) | {"path": 50}
    for index in range(count):
        other = index ^ 1
        facts |= gpu(index, name="NVIDIA A100 80GB PCIe", capability="8.0")
        facts |= {f"gpu.{index}.nvlink": "A" * 12, f"gpu.{index}.nvlink_to": ",".join([bus(other)] * 12)}
        facts |= {f"path.{min(index, other)}.{max(index, other)}": 10}
    return facts


def four_a100_mig() -> Facts:
    """Four A100; the first is cut into three slices, the second is in MIG mode without any."""
    facts = driver(4)
    for index in range(4):
        facts |= gpu(index, name="NVIDIA A100-SXM4-40GB", gib=40, capability="8.0")
    facts |= {"gpu.0.mig_current": 1, "gpu.1.mig_current": 1, "gpu.0.mig_max": 7, "gpu.1.mig_max": 7}
    for part in range(3):
        facts |= {
            f"gpu.0.mig.{part}.uuid": f"MIG-{part:08x}-aaaa-bbbb-cccc-ddddeeeeffff",
            f"gpu.0.mig.{part}.name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            f"gpu.0.mig.{part}.memory_total": 5 * GIB,
        }
    return facts


def plain(count: int) -> Facts:
    """GPUs without NVLink."""
    facts = driver(count)
    for index in range(count):
        facts |= gpu(index, name="NVIDIA L4", gib=24, capability="8.9")
    return facts
