"""What torch says about itself and the devices, asked in a bounded child: the command never imports torch.

Run as a module; speaks one :class:`TorchFacts`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from disttest.host.bounded import run_bounded, speak
from disttest.model import Frozen


class TorchFacts(Frozen):
    """The installed torch. An empty ``version`` means that it could not be asked; ``error`` says why."""

    version: str = ""
    cuda: str = ""
    """CUDA version it was built for; empty for a build without."""
    hip: str = ""
    nccl: str = ""
    cudnn: str = ""
    architectures: tuple[str, ...] = ()
    """What its kernels were compiled for: ``sm_80``, ``compute_90``, ``gfx942``."""
    backends: tuple[str, ...] = ()
    """Backends of torch.distributed that it has."""
    device_type: str = "cpu"
    """Type of accelerator that it was built for: cuda (ROCm too), xpu or cpu."""
    devices: tuple[str, ...] = ()
    """Names of the accelerators that it sees."""
    error: str = ""
    """Why torch or its accelerator can not be used; empty where both can, or there is none."""


def ask_torch(*, timeout_s: float = 60.0) -> TorchFacts:
    """Import torch and initialise its accelerator, in a bounded child."""
    heard: list[bytes] = []
    ended = run_bounded("disttest.host.devices.torch_facts", timeout_s=timeout_s, on_line=heard.append)
    try:
        # The first answer is about torch itself, the second about its accelerator.
        facts = msgspec.json.decode(heard[-1], type=TorchFacts)
    except (IndexError, msgspec.DecodeError):
        return TorchFacts(error=f"importing torch: the child {ended}")
    if len(heard) < 2:
        return msgspec.structs.replace(facts, error=f"initialising {facts.device_type}: the child {ended}")
    return facts


def has_accelerator() -> bool:
    """Whether the installed torch was built for one, without importing it; a torch that does not say so may be."""
    spec = importlib.util.find_spec("torch")
    version = Path(spec.origin).with_name("version.py") if spec and spec.origin else Path()
    try:
        text = version.read_text()
    except OSError:
        return True
    # Its lines read like "cuda: Optional[str] = None".
    told = re.findall(r"^(cuda|hip|xpu)\b[^=\n]*= *(.+)$", text, re.MULTILINE)
    return not told or any(value.strip() != "None" for _, value in told)


def about_torch() -> TorchFacts | None:
    """What torch says of itself, without a look at any device; None unless this process has imported it."""
    torch = sys.modules.get("torch")
    return _about(torch) if torch is not None else None


def main(_arguments: Sequence[str]) -> None:
    """Say what torch is, then what it sees."""
    import torch

    facts = _about(torch)
    speak(facts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        devices, error = _accelerators(torch, facts.device_type)
    error = error or next((str(w.message) for w in caught if not devices), "")
    speak(msgspec.structs.replace(facts, devices=devices, error=error))


def _about(torch: Any) -> TorchFacts:
    import torch.distributed as dist

    backends = ("gloo", "nccl", "mpi", "ucc", "xccl") if dist.is_available() else ()
    return TorchFacts(
        version=str(torch.__version__),
        cuda=torch.version.cuda or "",
        hip=torch.version.hip or "",
        nccl=_nccl(torch) if dist.is_available() and dist.is_nccl_available() else "",
        cudnn=str(torch.backends.cudnn.version() or "") if torch.version.cuda else "",
        architectures=_architectures(torch),
        backends=tuple(name for name in backends if dist.is_backend_available(name)),
        device_type=_device_type(torch),
    )


def _nccl(torch: Any) -> str:
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _architectures(torch: Any) -> tuple[str, ...]:
    # torch.cuda.get_arch_list() answers only where a GPU is present.
    flags = getattr(torch._C, "_cuda_getArchFlags", None)  # noqa: SLF001
    return tuple((flags() or "").split()) if flags else ()


def _device_type(torch: Any) -> str:
    if torch.version.cuda or torch.version.hip:
        return "cuda"
    return "xpu" if getattr(torch.version, "xpu", None) else "cpu"


def _accelerators(torch: Any, kind: str) -> tuple[tuple[str, ...], str]:
    if kind == "cpu":
        return (), ""
    module = getattr(torch, kind)
    try:
        count = module.device_count()
        if count:
            module.init()
        return tuple(module.get_device_name(index) for index in range(count)), ""
    except (RuntimeError, AssertionError) as error:
        return (), str(error)
