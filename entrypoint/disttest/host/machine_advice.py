"""What to do about the messages that broken machines give. Pure; each slug is a section of docs/errors.md."""

from __future__ import annotations

import re
from typing import NamedTuple

from disttest.model import Frozen

DOCS = "docs/errors.md"


class Advice(Frozen):
    """One line of advice; ``slug`` is the heading of its page section."""

    slug: str
    action: str

    def __str__(self) -> str:
        return f"{self.action} ({DOCS}#{self.slug})"


class _Known(NamedTuple):
    slug: str
    pattern: str
    """What the message looks like; empty for findings of our own, which are looked up by their slug."""
    action: str


_TABLE = (
    _Known(
        "gpu-toolkit-missing",
        r"could not select device driver|unknown or invalid runtime name: nvidia|unresolvable CDI devices"
        r"|CDI device injection failed",
        "Install nvidia-container-toolkit on the host and restart the container engine.",
    ),
    _Known(
        "driver-library-mismatch",
        r"Driver/library version mismatch|NVML/RM version mismatch|cudaErrorSystemDriverMismatch",
        "The driver was updated while it was loaded: reboot the host, or unload and load its modules.",
    ),
    _Known(
        "driver-too-old",
        r"NVIDIA driver on your system is too old|driver version is insufficient|cudaErrorInsufficientDriver",
        "Update the driver of the host, or use an image with an older CUDA.",
    ),
    _Known(
        "stale-compat-libcuda",
        r"error 803|unsupported display driver",
        "A libcuda of another version hides the driver's own: take cuda-compat off the library path.",
    ),
    _Known(
        "unsatisfied-condition",
        r"unsatisfied condition: cuda",
        "The image needs a newer driver than the host has: update the driver, or use an older image.",
    ),
    _Known(
        "gpu-lost",
        r"GPU is lost|fell off the bus|fallen off the bus|gave no answer .*asked about this GPU",
        "Take the host out of the pool and reset or reboot it; if it happens again, replace the GPU.",
    ),
    _Known(
        "gpu-needs-reset",
        r"requires reset|needs? a reset|reset required",
        "Reset it: nvidia-smi --gpu-reset -i N.",
    ),
    _Known(
        "gpu-memory-errors",
        r"uncorrectable ECC|uncorrected memory error|rows? (could not be|remap)|retired pages",
        "Reset the GPU; if errors come back after the reset, replace it.",
    ),
    _Known(
        "nccl-shared-memory",
        r"dev/shm|No space left on device|unhandled system error",
        "Start the container with --shm-size=1g or more.",
    ),
    _Known(
        "nccl-one-gpu-per-rank",
        r"Duplicate GPU detected|ncclInvalidUsage",
        "NCCL takes one rank for each GPU and no MIG slices: use gloo there.",
    ),
    _Known(
        "gpu-busy",
        r"is/are busy or unavailable|used by .* \(pid|cannot be seen from here",
        "End the process, wait for it, or share the GPU with --allow-busy-gpus.",
    ),
    _Known(
        "nvml-lost",
        r"Failed to initialize NVML|^Unknown Error$|Insufficient Permissions|No CUDA GPUs",
        "The container has lost its GPUs: start a new one; on the host, use cgroupfs or CDI.",
    ),
    _Known(
        "nvml-hangs",
        r"the NVML probe",
        "The driver hangs: look at dmesg for Xid lines, then reboot the host.",
    ),
    _Known(
        "no-gpu-in-container", "", "Start the container with --gpus all, or run on CPU with --device cpu."
    ),
    _Known("mig-mode", "", "Create slices (nvidia-smi mig -cgi … -C) or switch MIG off (nvidia-smi -mig 0)."),
    _Known("compute-mode", "", "Set it to default: nvidia-smi -c 0."),
    _Known(
        "nvlink-down",
        "",
        "Reset the GPUs and the fabric manager; if links stay down, have the board checked.",
    ),
    _Known("slow-gpu", "", "Check cooling and power; timings of this host are not to be trusted."),
    _Known("memlock", "", "Start the container with --ulimit memlock=-1."),
    _Known("open-files", "", "Raise the limit: --ulimit nofile=65536, or ulimit -n."),
    _Known("small-memory", "", "Give the container more memory, or run fewer worlds side by side (--slots)."),
    _Known("torch-unusable", "", "Install torch for this machine, and see the message."),
    _Known(
        "gpu-missing-in-torch",
        r"GPU .* is missing: torch sees",
        "Ask disttest doctor which GPU does not answer; leave it out with --gpus, or reboot the host.",
    ),
    _Known("torch-without-kernels", "", "Install a torch that was built for this GPU."),
    _Known(
        "gpu-quarantined",
        "",
        "No run takes it; a disttest doctor that finds it in order lifts this, and so does a reboot.",
    ),
    _Known("shm-litter", "", "Remove what no process uses: disttest doctor --clean."),
    _Known(
        "preflight-failed",
        "",
        "Take the device out of use; the check that failed says what is wrong with it.",
    ),
)

_BY_SLUG = {known.slug: Advice(slug=known.slug, action=known.action) for known in _TABLE}
_PATTERNS = tuple((re.compile(known.pattern, re.IGNORECASE), known.slug) for known in _TABLE if known.pattern)

SLUGS = tuple(_BY_SLUG)


def advise(slug: str) -> Advice:
    """The advice of a slug."""
    return _BY_SLUG[slug]


def explain(message: str) -> Advice | None:
    """The advice for a message of CUDA, NVML, NCCL, torch or a container engine; None for an unknown one."""
    return next((advise(slug) for pattern, slug in _PATTERNS if pattern.search(message)), None)


def cuda_version_of(message: str) -> str:
    """11.4 for "driver … is too old (found version 11040)": CUDA's version, not the driver's."""
    found = re.search(r"found version (\d{4,5})\)", message)
    return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}" if found else ""
