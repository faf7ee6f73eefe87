"""Advice for known messages: the tables, and the one of broken machines (CUDA, NVML, NCCL, torch, container engines).

Every slug has its section in a ``messages.md``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from disttest.host.findings import Advice


class Known(NamedTuple):
    """A row of a table."""

    slug: str
    pattern: str
    """Regular expression for the message; empty for disttest's own findings, which are looked up by slug."""
    action: str


class AdviceTable:
    """Advice by slug, and by a pattern of the message; the first matching row counts."""

    def __init__(self, *rows: Known) -> None:
        self._by_slug = {slug: Advice(slug=slug, action=action) for slug, _, action in rows}
        self._patterns = tuple(
            (re.compile(pattern, re.IGNORECASE | re.DOTALL), slug) for slug, pattern, _ in rows if pattern
        )

    @property
    def slugs(self) -> tuple[str, ...]:
        """All slugs of the table."""
        return tuple(self._by_slug)

    def of(self, slug: str) -> Advice:
        """Return the advice of a slug."""
        return self._by_slug[slug]

    def find(self, message: str) -> Advice | None:
        """Return the advice for a message; None for an unknown one."""
        return next((self.of(slug) for pattern, slug in self._patterns if pattern.search(message)), None)


MACHINE_ADVICE = AdviceTable(
    Known(
        "gpu-toolkit-missing",
        r"could not select device driver|unknown or invalid runtime name: nvidia|unresolvable CDI devices"
        r"|CDI device injection failed",
        "Install nvidia-container-toolkit on the host and restart the container engine.",
    ),
    Known(
        "driver-library-mismatch",
        r"Driver/library version mismatch|NVML/RM version mismatch|cudaErrorSystemDriverMismatch",
        "The driver was updated while it was loaded: reboot the host, or unload and load its modules.",
    ),
    Known(
        "driver-too-old",
        r"NVIDIA driver on your system is too old|driver version is insufficient|cudaErrorInsufficientDriver",
        "Update the driver of the host, or use an image with an older CUDA.",
    ),
    Known(
        "stale-compat-libcuda",
        r"error 803|unsupported display driver",
        "A libcuda of another version hides the driver's own: take cuda-compat off the library path.",
    ),
    Known(
        "unsatisfied-condition",
        r"unsatisfied condition: cuda",
        "The image needs a newer driver than the host has: update the driver, or use an older image.",
    ),
    Known(
        "gpu-lost",
        r"GPU is lost|fell off the bus|fallen off the bus|gave no answer .*asked about this GPU",
        "Take the host out of the pool and reset or reboot it; if it happens again, replace the GPU.",
    ),
    Known(
        "gpu-needs-reset",
        r"requires reset|needs? a reset|reset required",
        "Reset it: nvidia-smi --gpu-reset -i N.",
    ),
    Known(
        "gpu-memory-errors",
        r"uncorrectable ECC|uncorrected memory error|rows? (could not be|remap)|retired pages",
        "Reset the GPU; if errors come back after the reset, replace it.",
    ),
    # Docker's default is 64 MiB: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    Known(
        "nccl-shared-memory",
        r"dev/shm|No space left on device|unhandled system error",
        "Start the container with --shm-size=1g or more.",
    ),
    # NCCL refuses two ranks on one GPU since 2.5: https://github.com/NVIDIA/nccl/issues/418
    Known(
        "nccl-one-gpu-per-rank",
        r"Duplicate GPU detected|ncclInvalidUsage",
        "NCCL takes one rank for each GPU and no MIG slices: use gloo there.",
    ),
    Known(
        "gpu-busy",
        r"is/are busy or unavailable|used by .* \(pid|cannot be seen from here",
        "End the process, wait for it, or share the GPU with --allow-busy-gpus.",
    ),
    # systemd reloads its units and takes the GPUs from the cgroup of a running container:
    # https://github.com/NVIDIA/nvidia-container-toolkit/issues/48
    Known(
        "nvml-lost",
        r"Failed to initialize NVML|^Unknown Error$|Insufficient Permissions|No CUDA GPUs",
        "The container has lost its GPUs: start a new one; on the host, use cgroupfs or CDI.",
    ),
    Known(
        "nvml-hangs",
        r"the NVML probe",
        "The driver hangs: look at dmesg for Xid lines, then reboot the host.",
    ),
    Known("no-gpu-in-container", "", "Start the container with --gpus all, or run on CPU with --device cpu."),
    Known("mig-mode", "", "Create slices (nvidia-smi mig -cgi … -C) or switch MIG off (nvidia-smi -mig 0)."),
    Known("compute-mode", "", "Set it to default: nvidia-smi -c 0."),
    Known(
        "nvlink-down",
        "",
        "Reset the GPUs and the fabric manager; if links stay down, have the board checked.",
    ),
    Known("slow-gpu", "", "Check cooling and power; timings of this host are unreliable."),
    Known("memlock", "", "Start the container with --ulimit memlock=-1."),
    Known("open-files", "", "Raise the limit: --ulimit nofile=65536, or ulimit -n."),
    Known(
        "small-memory", "", "Give the container more memory, or run fewer worlds at the same time (--slots)."
    ),
    Known("torch-unusable", "", "Install torch for this machine, and see the message."),
    Known(
        "numpy-unusable",
        r"Numpy is not available|No module named 'numpy'",
        "Install a NumPy that fits this torch: pip install 'numpy>=1.26' (below 2 for a torch built before NumPy 2).",
    ),
    Known(
        "gpu-missing-in-torch",
        r"GPU .* is missing: torch sees",
        "Run disttest doctor to find the GPU that does not answer; leave it out with --gpus, or reboot the host.",
    ),
    Known("torch-without-kernels", "", "Install a torch that was built for this GPU."),
    Known(
        "gpu-quarantined",
        "",
        "Runs do not use it. Repair it and run disttest doctor, or reboot, to release it.",
    ),
    Known("shm-litter", "", "Remove what no process uses: disttest doctor --clean."),
    Known(
        "preflight-failed",
        "",
        "Take the device out of use; the check that failed says what is wrong with it.",
    ),
)


def cuda_version_of(message: str) -> str:
    """Return 11.4 for "driver … is too old (found version 11040)", which is CUDA's version and not the driver's."""
    found = re.search(r"found version (\d{4,5})\)", message)
    return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}" if found else ""
