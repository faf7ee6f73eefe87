"""Facts about the installed torch and its devices, asked in a child with a deadline.

The command never imports torch, and the process that forks ranks never asks CUDA anything. Even a question for a
version number initialises the driver, after which no fork of that process can use CUDA. As a module it writes one
:class:`TorchFacts`, then another one that includes the devices that torch sees.

A process that has imported torch and must stay fit to be forked asks through a fork (:func:`look_at_devices`).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from disttest.host.bounded import BoundedChild, send_to_parent, wait_children
from disttest.host.fork_hazard import ask_fork, fork_hazard
from disttest.model import Frozen
from disttest.plugins.gpus.limits import DRIVER_TOTAL_S

_NO_BACKENDS = ("undefined", "fake")
"""Names in torch's list of backends that do not communicate."""


class TorchFacts(Frozen):
    """The installed torch. If ``version`` is empty, torch could not be asked; ``error`` gives the reason."""

    version: str = ""
    cuda: str = ""
    """CUDA version that torch was built for; empty for a build without CUDA."""
    hip: str = ""
    nccl: str = ""
    cudnn: str = ""
    architectures: tuple[str, ...] = ()
    """Architectures of its compiled kernels: ``sm_80``, ``compute_90``, ``gfx942``."""
    backends: tuple[str, ...] = ()
    """Available backends of torch.distributed."""
    device_type: str = "cpu"
    """Type of accelerator that torch was built for: cuda (also for ROCm), xpu or cpu."""
    devices: tuple[str, ...] = ()
    """Names of the visible accelerators."""
    numpy_error: str = ""
    """Reason why torch cannot use NumPy; empty if it can or was not asked."""
    error: str = ""
    """Reason why torch or its accelerator cannot be used; empty if both work or there is no accelerator."""


def ask_torch(*, timeout_s: float = DRIVER_TOTAL_S) -> TorchFacts:
    """Import torch and initialise its accelerator, in a bounded child."""
    heard: list[bytes] = []
    child = BoundedChild("disttest.plugins.gpus.torch_facts", timeout_s=timeout_s, on_line=heard.append)
    wait_children([child])
    try:
        # The first answer is about torch itself, the second about its accelerator.
        facts = msgspec.json.decode(heard[-1], type=TorchFacts)
    except (IndexError, msgspec.DecodeError):
        return TorchFacts(error=f"importing torch: the child {child.ended}")
    if len(heard) < 2:
        return msgspec.structs.replace(
            facts, error=f"initialising {facts.device_type}: the child {child.ended}"
        )
    return facts


def local_torch_facts() -> TorchFacts:
    """Describe torch. This imports torch and initialises nothing."""
    import torch

    return _about(torch)


def ask_in_fork(*, timeout_s: float = DRIVER_TOTAL_S) -> TorchFacts:
    """Ask in a fork of this process, which has imported torch: milliseconds instead of the seconds of an import."""
    # If this process has touched CUDA, its fork cannot use it. ``error`` then has torch's message.
    told, ended = ask_fork(lambda: msgspec.json.encode(_all_facts()), limit_s=timeout_s)
    try:
        return msgspec.json.decode(told, type=TorchFacts)
    except msgspec.DecodeError:
        why = f"gave no answer within {timeout_s:.0f} s" if ended is None else f"ended with {ended}"
        error = f"initialising the devices: the process that asked {why}"
        return msgspec.structs.replace(local_torch_facts(), error=error)


def built_for() -> dict[str, str]:
    """Return what the installed torch was built for, without importing it.

    Returns:
        ``cuda``, ``hip`` and ``xpu``, each mapped to a version that is empty for none. Nothing if torch does not
            state it.
    """
    spec = importlib.util.find_spec("torch")
    version = Path(spec.origin).with_name("version.py") if spec and spec.origin else Path()
    try:
        text = version.read_text()
    except OSError:
        return {}
    # Its lines have the form "cuda: Optional[str] = None".
    told = re.findall(r"^(cuda|hip|xpu)\b[^=\n]*= *(.+)$", text, re.MULTILINE)
    return {name: "" if value.strip() == "None" else value.strip(" '\"") for name, value in told}


def has_accelerator() -> bool:
    """Return whether torch was built for an accelerator, without importing it; True if it is unknown."""
    told = built_for()
    return not told or any(told.values())


def main(_arguments: Sequence[str]) -> None:
    """Write the facts about torch, then those about its devices."""
    send_to_parent(local_torch_facts())
    send_to_parent(_all_facts())


def _all_facts() -> TorchFacts:
    """Describe torch and its devices. This process can fork no rank afterwards."""
    import torch

    facts = _about(torch)
    # torch warns, instead of raising, when the driver refuses while devices are counted.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        devices, error = _accelerators(torch, facts.device_type)
        cudnn, incompatible = _cudnn(torch) if facts.cuda and not error else ("", "")
    error = error or incompatible or next((str(w.message) for w in caught if not devices), "")
    return msgspec.structs.replace(
        facts,
        devices=devices,
        error=error,
        cudnn=cudnn,
        architectures=_architectures(torch),
        numpy_error=_numpy_error(torch),
    )


def _about(torch: Any) -> TorchFacts:
    """Describe torch without initialising a device."""
    import torch.distributed as dist

    backends = (
        [name for name in dist.Backend.backend_list if name not in _NO_BACKENDS]
        if dist.is_available()
        else []
    )
    return TorchFacts(
        version=str(torch.__version__),
        cuda=torch.version.cuda or "",
        hip=torch.version.hip or "",
        nccl=_nccl(torch) if dist.is_available() and dist.is_nccl_available() else "",
        backends=tuple(name for name in backends if dist.is_backend_available(name)),
        device_type=_device_type(torch),
    )


def _nccl(torch: Any) -> str:
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _numpy_error(torch: Any) -> str:
    try:
        importlib.import_module("numpy")
        torch.zeros(1).numpy()
    except (
        ImportError,
        RuntimeError,
    ) as error:  # it is missing, or torch was built for another major version
        return str(error).partition("\n")[0]
    return ""


def _cudnn(torch: Any) -> tuple[str, str]:
    """Return the version of cuDNN, and why torch refuses to use it; one of them is empty."""
    try:
        return str(torch.backends.cudnn.version() or ""), ""
    except RuntimeError as error:
        return "", str(error)


def _architectures(torch: Any) -> tuple[str, ...]:
    # torch.cuda.get_arch_list() answers only where a GPU is present (torch 2.9 to 2.15):
    # https://github.com/pytorch/pytorch/blob/main/torch/cuda/__init__.py
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
        # Without a device `init` raises, although a machine without GPUs is no error.
        if count:
            module.init()
        return tuple(module.get_device_name(index) for index in range(count)), ""
    except (RuntimeError, AssertionError) as error:
        return (), str(error)


class TorchSight(NamedTuple):
    """The result of asking torch."""

    torch: TorchFacts
    by_forks: bool
    """Whether forks of this process can use the devices."""
    # The devices themselves work.
    trouble: str = ""
    """torch's message about why forks cannot use them, if no other check had found a reason."""


def look_at_devices() -> TorchSight:
    """Ask a fork of this process; ask a new interpreter if forking is unsafe or the fork fails."""
    # A new interpreter shows whether the devices or this process are at fault. Forking is unsafe after an import has
    # used CUDA (a ``sitecustomize`` that looks for GPUs) or has left threads.
    if fork_hazard(on_gpus=True):
        return TorchSight(ask_torch(), by_forks=False)
    seen = ask_in_fork()
    if not seen.error:
        return TorchSight(seen, by_forks=True)
    torch = ask_torch()
    # If a new interpreter can use the devices, the fault is in this process and not in the machine.
    return TorchSight(torch, by_forks=False, trouble="" if torch.error else seen.error)
