"""Findings about a detected machine: one for each device and check. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from disttest.host.findings import DeviceFinding, Grade
from disttest.plugins.gpus.leases.lease import foreign_use
from disttest.plugins.gpus.machine import Gpu, GpuMachine
from disttest.plugins.gpus.machine_advice import MACHINE_ADVICE, cuda_version_of
from disttest.plugins.gpus.torch_facts import TorchFacts

_MIB = 1 << 20
_GIB = 1 << 30


def judge_machine(machine: GpuMachine, torch: TorchFacts) -> tuple[DeviceFinding, ...]:
    """Run all checks that need no work on the devices."""
    findings = [check(machine, torch) for check in _MACHINE_CHECKS]
    for gpu in machine.gpus:
        findings += judge_gpu(gpu, torch)
    return tuple(findings)


def torch_refusal(machine: GpuMachine, torch: TorchFacts, *, needed: int) -> str:
    """Return why torch cannot use the GPUs of a run, with advice; empty if it can.

    Args:
        machine: the machine, for its driver.
        torch: torch's answers, with these GPUs visible.
        needed: number of devices that torch must see.
    """
    built, serves = _built(torch), _serves(machine)
    if torch.device_type == "cpu" and torch.version:
        return f"{built} and cannot use the GPUs of this run: install a build for CUDA, or use --device cpu"
    if _is_newer(torch.cuda, machine):
        return driver_too_old(machine, torch.cuda, built)
    if torch.error:
        advice = MACHINE_ADVICE.find(torch.error) or MACHINE_ADVICE.of("torch-unusable")
        return f"{built}; it cannot use the GPUs of this run: {torch.error.strip()} ({serves}). {advice}"
    if len(torch.devices) < needed:
        advice = MACHINE_ADVICE.of("gpu-missing-in-torch")
        return (
            f"torch sees {len(torch.devices)} of the {needed} GPUs of this run ({built}, {serves}). {advice}"
        )
    return ""


def driver_too_old(machine: GpuMachine, cuda: str, built: str = "") -> str:
    """Return why the driver cannot run a torch built for that CUDA version, with advice; empty if it can."""
    if not _is_newer(cuda, machine):
        return ""
    built = built or f"the installed torch was built for CUDA {cuda}"
    return f"{built}, {_serves(machine)}: the driver is too old. {MACHINE_ADVICE.of('driver-too-old')}"


def _built(torch: TorchFacts) -> str:
    kind = (
        (torch.cuda and f"for CUDA {torch.cuda}") or (torch.hip and f"for ROCm {torch.hip}") or "without CUDA"
    )
    return f"torch {torch.version} was built {kind}" if torch.version else "torch did not answer"


def _serves(machine: GpuMachine) -> str:
    return (
        f"driver {machine.driver} serves up to CUDA {machine.cuda_driver}"
        if machine.driver
        else "no NVIDIA driver"
    )


def _is_newer(cuda: str, machine: GpuMachine) -> bool:
    # Major versions only: a driver serves every minor version of its CUDA, which NVIDIA calls minor version
    # compatibility.
    return _major(cuda) > _major(machine.cuda_driver) > 0


def judge_gpu(gpu: Gpu, torch: TorchFacts) -> Iterator[DeviceFinding]:
    """Run all checks of one GPU by NVML's data. For a GPU that does not answer, only that is reported."""
    if gpu.fault:
        yield _broken(gpu.label, "answers", gpu.fault, "gpu-lost")
        return
    yield DeviceFinding(
        device=gpu.label, check="answers", message=f"{gpu.name}, {gpu.memory_total // _MIB} MiB"
    )
    for check in _GPU_CHECKS:
        yield check(gpu)
    yield _kernels(gpu, torch)


def _broken(device: str, check: str, message: str, slug: str) -> DeviceFinding:
    """Create a finding of a broken device."""
    # A message known to the table gets its own advice, any other that of the check.
    advice = MACHINE_ADVICE.find(message) or MACHINE_ADVICE.of(slug)
    return DeviceFinding(device=device, check=check, grade=Grade.BROKEN, message=message, advice=advice)


def _warn(device: str, check: str, message: str, slug: str) -> DeviceFinding:
    return DeviceFinding(
        device=device, check=check, grade=Grade.WARNING, message=message, advice=MACHINE_ADVICE.of(slug)
    )


def _gpus(machine: GpuMachine, _torch: TorchFacts) -> DeviceFinding:
    """Check that NVML answers and shows the GPUs that the container was given."""
    if machine.nvml_error:
        return _broken("machine", "nvml", machine.nvml_error, "nvml-lost")
    # /dev/nvidiactl and /dev/nvidia-uvm may exist without a GPU.
    has_gpu_nodes = any(node.removeprefix("/dev/nvidia").isdigit() for node in machine.device_nodes)
    if has_gpu_nodes and not machine.gpus:
        return _broken("machine", "nvml", "there are /dev/nvidia* but NVML shows no GPU", "nvml-lost")
    if machine.driver and not machine.gpus:
        message = f"the host has driver {machine.driver}, but this container sees no GPU"
        return _warn("machine", "nvml", message, "no-gpu-in-container")
    if not machine.gpus:
        return DeviceFinding(
            device="machine", check="nvml", message="no GPU, no driver: tests run on CPU over gloo"
        )
    text = f"{len(machine.gpus)} GPUs, driver {machine.driver}, CUDA up to {machine.cuda_driver}"
    return DeviceFinding(device="machine", check="nvml", message=text)


def _torch(machine: GpuMachine, torch: TorchFacts) -> DeviceFinding:
    """Check that torch is installed and was built for this machine."""
    if not torch.version:
        return _broken("machine", "torch", torch.error or "torch is not installed", "torch-unusable")
    built = f"torch {torch.version}"
    if machine.usable_gpus and torch.error:
        found = cuda_version_of(torch.error)
        driver = f" (the driver serves CUDA {found})" if found else ""
        return _broken("machine", "torch", f"{built}: {torch.error}{driver}", "torch-unusable")
    if machine.usable_gpus and torch.device_type == "cpu":
        return _warn("machine", "torch", f"{built} was built without CUDA: GPUs stay idle", "torch-unusable")
    if _is_newer(torch.cuda, machine):
        message = f"{built} was built for CUDA {torch.cuda}, the driver serves up to {machine.cuda_driver}"
        return _broken("machine", "torch", message, "driver-too-old")
    parts = [built, torch.cuda and f"CUDA {torch.cuda}", torch.hip and f"ROCm {torch.hip}"]
    parts += [torch.nccl and f"NCCL {torch.nccl}", ", ".join(torch.backends), ", ".join(torch.devices)]
    return DeviceFinding(device="machine", check="torch", message=", ".join(part for part in parts if part))


def _numpy(_machine: GpuMachine, torch: TorchFacts) -> DeviceFinding:
    """torch can use NumPy, which its collectives of objects and its RPC need."""
    if torch.numpy_error:
        return _broken("machine", "numpy", f"torch cannot use NumPy: {torch.numpy_error}", "numpy-unusable")
    return DeviceFinding(device="machine", check="numpy", message="torch can use it" if torch.version else "")


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else 0


def _cpu(machine: GpuMachine, _torch: TorchFacts) -> DeviceFinding:
    cpu = machine.cpu
    quota = "no quota" if cpu.quota is None else f"a quota of {cpu.quota:g}"
    text = f"{cpu.granted} of {cpu.online} processors ({cpu.affinity} by affinity, {quota})"
    return DeviceFinding(device="machine", check="cpu", message=text)


def _memory(machine: GpuMachine, _torch: TorchFacts) -> DeviceFinding:
    limits = machine.limits
    text = f"{limits.memory / _GIB:.1f} of {limits.memory_total / _GIB:.1f} GiB"
    if limits.memory < _GIB:
        return _warn("machine", "memory", f"only {text}: torch alone takes a third of that", "small-memory")
    return DeviceFinding(device="machine", check="memory", message=text)


def _shm(machine: GpuMachine, _torch: TorchFacts) -> DeviceFinding:
    """Check shared memory, which NCCL and data loaders need. Container engines give 64 MiB by default."""
    size, used = machine.limits.shm_size, machine.limits.shm_used
    text = f"shared memory has {size // _MIB} MiB, {used // _MIB} MiB of them used"
    if size - used < 256 * _MIB:
        grade = _broken if len(machine.usable_gpus) > 1 else _warn
        return grade("machine", "shared_memory", f"{text}: too little for NCCL", "nccl-shared-memory")
    return DeviceFinding(device="machine", check="shared_memory", message=text)


def _memlock(machine: GpuMachine, _torch: TorchFacts) -> DeviceFinding:
    limit = machine.limits.memlock
    text = "unlimited" if limit is None else f"{limit // 1024} KiB"
    if limit is not None and machine.fabrics:
        message = f"locked memory is limited to {text}: RDMA cannot register its buffers"
        return _warn("machine", "memlock", message, "memlock")
    return DeviceFinding(device="machine", check="memlock", message=text)


def _open_files(machine: GpuMachine, _torch: TorchFacts) -> DeviceFinding:
    limit = machine.limits.open_files
    if limit is not None and limit < 1024:
        return _warn("machine", "open_files", f"only {limit} open files are allowed", "open-files")
    return DeviceFinding(device="machine", check="open_files", message=str(limit or "unlimited"))


def _fabrics(machine: GpuMachine, _torch: TorchFacts) -> DeviceFinding:
    names = ", ".join(f"{fabric.name} ({fabric.kind}, {fabric.state})" for fabric in machine.fabrics)
    return DeviceFinding(device="machine", check="fabrics", message=names or "none")


_MACHINE_CHECKS: tuple[Callable[[GpuMachine, TorchFacts], DeviceFinding], ...] = (
    _gpus,
    _torch,
    _numpy,
    _cpu,
    _memory,
    _shm,
    _memlock,
    _open_files,
    _fabrics,
)


def _ecc(gpu: Gpu) -> DeviceFinding:
    if gpu.remap_failed:
        return _broken(gpu.label, "memory_errors", "a bad row could not be remapped", "gpu-memory-errors")
    if gpu.remap_pending or gpu.retired_pages_pending:
        what = "rows wait to be remapped" if gpu.remap_pending else "pages wait to be retired"
        message = f"memory errors: {what} at the next reset"
        return _broken(gpu.label, "memory_errors", message, "gpu-memory-errors")
    if gpu.ecc_uncorrected:
        message = f"{gpu.ecc_uncorrected} uncorrected memory errors since the driver was loaded"
        return _broken(gpu.label, "memory_errors", message, "gpu-memory-errors")
    off = "" if gpu.ecc_enabled else ", ECC is off or unknown"
    text = f"none uncorrected, {gpu.ecc_corrected} corrected, {gpu.remapped_rows} rows remapped{off}"
    return DeviceFinding(device=gpu.label, check="memory_errors", message=text)


def _mode(gpu: Gpu) -> DeviceFinding:
    if gpu.compute_mode == "prohibited":
        return _broken(gpu.label, "compute_mode", "its mode prohibits computing", "compute-mode")
    if gpu.compute_mode.startswith("exclusive"):
        message = f"its mode is {gpu.compute_mode}: only one process can use it at a time"
        return _warn(gpu.label, "compute_mode", message, "compute-mode")
    return DeviceFinding(device=gpu.label, check="compute_mode", message=gpu.compute_mode or "unknown")


def _mig(gpu: Gpu) -> DeviceFinding:
    if gpu.mig_enabled and not gpu.slices:
        return _broken(gpu.label, "mig", "MIG mode is on and there is no slice", "mig-mode")
    if gpu.mig_enabled:
        message = f"{len(gpu.slices)} MIG slices: gloo only, since NCCL takes no MIG slices"
        return _warn(gpu.label, "mig", message, "nccl-one-gpu-per-rank")
    return DeviceFinding(device=gpu.label, check="mig", message="off")


def _clocks(gpu: Gpu) -> DeviceFinding:
    temperature = "" if gpu.temperature_c is None else f" at {gpu.temperature_c} °C"
    if gpu.throttle:
        message = f"slowed down{temperature}: {', '.join(gpu.throttle)}"
        return _warn(gpu.label, "clocks", message, "slow-gpu")
    return DeviceFinding(device=gpu.label, check="clocks", message=f"not slowed down{temperature}")


def _pcie(gpu: Gpu) -> DeviceFinding:
    """Check the width of the PCIe link. The generation is ignored: an idle link lowers it to save power."""
    if 0 < gpu.pcie_width < gpu.pcie_max_width:
        message = f"PCIe runs at x{gpu.pcie_width} instead of x{gpu.pcie_max_width}"
        return _warn(gpu.label, "pcie", message, "slow-gpu")
    return DeviceFinding(
        device=gpu.label, check="pcie", message=f"x{gpu.pcie_width} of x{gpu.pcie_max_width}"
    )


def _nvlink(gpu: Gpu) -> DeviceFinding:
    # On a GPU without a bridge all links are down, which is no fault.
    if gpu.nvlinks_down and gpu.nvlinks_active:
        message = f"{gpu.nvlinks_down} of {gpu.nvlinks_active + gpu.nvlinks_down} NVLinks are down"
        return _warn(gpu.label, "nvlink", message, "nvlink-down")
    peers = [str(peer.index) for peer in gpu.peers if peer.nvlinks]
    text = f"{gpu.nvlinks_active} active, to GPU {', '.join(peers)}" if peers else "none"
    return DeviceFinding(device=gpu.label, check="nvlink", message=text)


def _use(gpu: Gpu) -> DeviceFinding:
    use = foreign_use(gpu)
    if use:
        return _warn(gpu.label, "use", use, "gpu-busy")
    return DeviceFinding(device=gpu.label, check="use", message="idle")


_GPU_CHECKS: tuple[Callable[[Gpu], DeviceFinding], ...] = (_ecc, _mode, _mig, _clocks, _pcie, _nvlink, _use)


def _kernels(gpu: Gpu, torch: TorchFacts) -> DeviceFinding:
    """Check that torch has kernels for this GPU: of its major version and not newer, or PTX to compile them from."""
    wanted = _capability(gpu.compute_capability.replace(".", ""))
    names = [name.partition("_") for name in torch.architectures]
    binary = {_capability(number) for kind, _, number in names if kind == "sm"}
    source = {_capability(number) for kind, _, number in names if kind == "compute"}
    fits = any(have // 10 == wanted // 10 and have <= wanted for have in binary if have)
    if names and wanted and not fits and not any(0 < have <= wanted for have in source):
        has = ", ".join(torch.architectures)
        message = f"torch {torch.version} has no kernels for sm_{wanted}, only {has}"
        return _broken(gpu.label, "kernels", message, "torch-without-kernels")
    return DeviceFinding(device=gpu.label, check="kernels", message=f"sm_{wanted}" if wanted else "unknown")


def _capability(number: str) -> int:
    """Parse an architecture: 90 for "90" and "90a"; 0 if it is no CUDA architecture."""
    digits = number.rstrip("af")
    return int(digits) if digits.isdigit() else 0
