"""Questions to NVML, asked in a bounded child process, because the driver may hang or crash the process that asks.

It runs as a module: ``main(["--library", PATH, "--skip", "3"])``. Before each call that touches a GPU it names the
GPU, so that the parent can report one that never answers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from ctypes import CDLL
from typing import Any

import pynvml as nvml

from disttest.host.bounded import send_to_parent
from disttest.plugins.gpus.machine import Gpu, GpuProcess, MigSlice
from disttest.plugins.gpus.probe import (
    Asking,
    Done,
    Driver,
    Found,
    Link,
    ProbeRefused,
    QuestionAnswered,
)

# Errors of a GPU that does not work. All other errors mean that the value is unknown or not permitted.
_BROKEN = {
    nvml.NVML_ERROR_TIMEOUT,
    nvml.NVML_ERROR_IRQ_ISSUE,
    nvml.NVML_ERROR_GPU_IS_LOST,
    nvml.NVML_ERROR_RESET_REQUIRED,
    nvml.NVML_ERROR_OPERATING_SYSTEM,
    nvml.NVML_ERROR_GPU_NOT_FOUND,
    nvml.NVML_ERROR_UNKNOWN,
}

_SLOWDOWNS = {
    nvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    nvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    nvml.nvmlClocksEventReasonSwThermalSlowdown: "thermal slowdown (software)",
    nvml.nvmlClocksEventReasonHwThermalSlowdown: "thermal slowdown (hardware)",
    nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
}

_COMPUTE_MODES = {
    nvml.NVML_COMPUTEMODE_DEFAULT: "default",
    nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
    nvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive_thread",
}

_PATHS = {
    nvml.NVML_TOPOLOGY_INTERNAL: "internal",
    nvml.NVML_TOPOLOGY_SINGLE: "single",
    nvml.NVML_TOPOLOGY_MULTIPLE: "multiple",
    nvml.NVML_TOPOLOGY_HOSTBRIDGE: "hostbridge",
    nvml.NVML_TOPOLOGY_NODE: "node",
    nvml.NVML_TOPOLOGY_SYSTEM: "system",
}

_P2P_NVLINK = 2  # nvml.NVML_P2P_CAPS_INDEX_NVLINK, which the binding defines as a tuple by mistake


def main(arguments: Sequence[str]) -> None:
    """Ask all questions and write the answers."""
    options = _parse(arguments)
    if options.library:
        # The binding loads the library by its name, and has no parameter for a path.
        nvml.nvmlLib = CDLL(options.library)
    send_to_parent(Asking(what="nvmlInit"))
    try:
        nvml.nvmlInit()
        if options.watch:
            _answer_questions(frozenset(options.skip))
        else:
            _ask_machine(frozenset(options.skip), only_processes=False)
    except nvml.NVMLError as error:
        send_to_parent(ProbeRefused(code=error.value, message=str(error)))
        return
    send_to_parent(Asking(what="nvmlShutdown"))
    nvml.nvmlShutdown()
    send_to_parent(Done())


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", default="")
    parser.add_argument("--skip", type=int, action="append", default=[])
    parser.add_argument(
        "--watch", action="store_true", help="for each line of input, report the processes that hold memory"
    )
    return parser.parse_args(arguments)


def _answer_questions(skip: frozenset[int]) -> None:
    for _ in sys.stdin:
        _ask_machine(skip, only_processes=True)
        send_to_parent(QuestionAnswered())


def _ask_machine(skip: frozenset[int], *, only_processes: bool) -> None:
    count = nvml.nvmlDeviceGetCount()
    send_to_parent(
        Driver(
            gpus=count,
            driver=_ask(nvml.nvmlSystemGetDriverVersion) or "",
            cuda=_version(_ask(nvml.nvmlSystemGetCudaDriverVersion_v2) or 0),
            nvml=_ask(nvml.nvmlSystemGetNVMLVersion) or "",
        )
    )
    handles = {}
    for index in range(count):
        if index not in skip:
            send_to_parent(Asking(what="asking the GPU", gpu=index))
            gpu, handle = _ask_gpu(index, only_processes=only_processes)
            send_to_parent(Found(gpu=gpu))
            if handle is not None and not gpu.fault:
                handles[index] = handle
    if not only_processes and len(handles) > 1:
        send_to_parent(Asking(what="how the GPUs are connected"))
        for link in _ask_links(handles):
            send_to_parent(link)


def _version(number: int) -> str:
    # 12040 is CUDA 12.4
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _ask(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function of NVML; return None if the GPU or the driver does not support it.

    Raises:
        NVMLError: the GPU is broken.
    """
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        if error.value in _BROKEN:
            raise
        return None
    # The binding decodes names, and a driver in trouble returns bytes that are no text.
    except UnicodeDecodeError:
        return None


def _ask_gpu(index: int, *, only_processes: bool) -> tuple[Gpu, Any]:
    facts: dict[str, Any] = {"index": index}
    handle = None
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        facts.update(_identity(handle))
        # Reported before the other questions, so that a failure from now on belongs to a GPU with a name.
        send_to_parent(Found(gpu=Gpu(**facts)))
        for group in _WHO_HOLDS_IT if only_processes else _GROUPS:
            facts.update(group(handle))
    except nvml.NVMLError as error:
        facts["fault"] = str(error)
    return Gpu(**facts), handle


def _identity(handle: Any) -> dict[str, Any]:
    pci = _ask(nvml.nvmlDeviceGetPciInfo, handle)
    capability = _ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return {
        "uuid": _ask(nvml.nvmlDeviceGetUUID, handle) or "",
        "name": _ask(nvml.nvmlDeviceGetName, handle) or "",
        "bus_id": _text(pci.busId) if pci else "",
        "minor": _ask(nvml.nvmlDeviceGetMinorNumber, handle),
        "compute_capability": ".".join(map(str, capability)) if capability else "",
    }


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _memory(handle: Any) -> dict[str, Any]:
    # The second version of the struct excludes memory that the driver reserves, which would otherwise look like a
    # leak.
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if memory is None:
        memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    return {"memory_total": memory.total, "memory_used": memory.used} if memory else {}


def _modes(handle: Any) -> dict[str, Any]:
    persistence = _ask(nvml.nvmlDeviceGetPersistenceMode, handle)
    return {
        "persistence": None if persistence is None else bool(persistence),
        "compute_mode": _COMPUTE_MODES.get(_ask(nvml.nvmlDeviceGetComputeMode, handle), ""),
    }


def _slices(handle: Any) -> dict[str, Any]:
    current, pending = _ask(nvml.nvmlDeviceGetMigMode, handle) or (0, 0)
    facts: dict[str, Any] = {"mig_enabled": bool(current), "mig_pending": current != pending}
    if current:
        numbers = range(_ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
        facts["slices"] = tuple(part for number in numbers for part in _slice(handle, number))
    return facts


def _slice(handle: Any, number: int) -> Iterator[MigSlice]:
    part = _ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
    if part is not None:
        uuid, name = _ask(nvml.nvmlDeviceGetUUID, part), _ask(nvml.nvmlDeviceGetName, part)
        yield MigSlice(uuid=uuid or "", number=number, name=name or "", **_memory(part), **_processes(part))


def _errors(handle: Any) -> dict[str, Any]:
    ecc = _ask(nvml.nvmlDeviceGetEccMode, handle)
    # Rows remapped for correctable and for uncorrectable errors, whether some are pending, and whether one
    # failed.
    rows = _ask(nvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
    return {
        "ecc_enabled": None if ecc is None else bool(ecc[0]),
        "ecc_uncorrected": _ecc_count(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED) if ecc else 0,
        "ecc_corrected": _ecc_count(handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED) if ecc else 0,
        "remapped_rows": rows[1],
        "remap_pending": bool(rows[2]),
        "remap_failed": bool(rows[3]),
        "retired_pages_pending": bool(_ask(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)),
    }


def _ecc_count(handle: Any, kind: int) -> int:
    return _ask(nvml.nvmlDeviceGetTotalEccErrors, handle, kind, nvml.NVML_VOLATILE_ECC) or 0


def _speed(handle: Any) -> dict[str, Any]:
    reasons = _ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:  # drivers before R535 have only the old name
        reasons = _ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    return {
        "throttle": tuple(name for bit, name in _SLOWDOWNS.items() if reasons & bit),
        "temperature_c": _ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        "pcie_generation": _ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle) or 0,
        "pcie_width": _ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle) or 0,
        "pcie_max_generation": _ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle) or 0,
        "pcie_max_width": _ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle) or 0,
    }


def _nvlinks(handle: Any) -> dict[str, Any]:
    # 1 is up, 0 is down, and None a link that the GPU does not have.
    states = [_ask(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    return {"nvlinks_active": states.count(1), "nvlinks_down": states.count(0)}


_MPS_SERVER = "nvidia-cuda-mps-server"
"""The server holds a context on each GPU as long as its daemon runs, and computes nothing itself."""


def _processes(handle: Any) -> dict[str, Any]:
    # These functions have no decorated names: a decorated one raises another error when the driver lacks the
    # function.
    compute = _ask(nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if compute is None:  # drivers before R510
        compute = _ask(nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle)
    # Clients of an MPS server are in a separate list.
    clients = _ask(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle) or []
    drawing = {entry.pid for entry in _ask(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle) or []}
    # usedGpuMemory is None where the driver does not report the memory of single processes.
    held = dict.fromkeys(drawing, 0) | {
        entry.pid: entry.usedGpuMemory or 0 for entry in [*(compute or []), *clients]
    }
    named = [(pid, memory, _process_name(pid)) for pid, memory in sorted(held.items())]
    return {
        "processes": tuple(
            GpuProcess(
                pid=pid,
                memory=memory,
                name=name,
                computes=pid not in drawing and not name.endswith(_MPS_SERVER),
            )
            for pid, memory, name in named
        )
    }


def _process_name(pid: int) -> str:
    return _text(_ask(nvml.nvmlSystemGetProcessName, pid) or "")


_WHO_HOLDS_IT = (_memory, _processes, _slices)
_GROUPS = (_memory, _modes, _slices, _errors, _speed, _nvlinks, _processes)


def _ask_links(handles: dict[int, Any]) -> Iterator[Link]:
    wires = {index: _wires(handle) for index, handle in handles.items()}
    buses = {index: _bus(handle) for index, handle in handles.items()}
    for first in handles:
        for second in handles:
            if first < second:
                reached = _ask(nvml.nvmlDeviceGetP2PStatus, handles[first], handles[second], _P2P_NVLINK)
                level = _ask(nvml.nvmlDeviceGetTopologyCommonAncestor, handles[first], handles[second])
                direct = wires[first].count(buses[second])
                # Through a switch, the far end of a link is the switch. The P2P status then shows which GPU is
                # reached.
                through = len(wires[first]) if reached == nvml.NVML_P2P_STATUS_OK else 0
                yield Link(first=first, second=second, nvlinks=direct or through, path=_PATHS.get(level, ""))


def _wires(handle: Any) -> list[str]:
    """Return the far ends of a GPU's active NVLinks."""
    active = (
        link
        for link in range(nvml.NVML_NVLINK_MAX_LINKS)
        if _ask(nvml.nvmlDeviceGetNvLinkState, handle, link) == 1
    )
    ends = (_ask(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link) for link in active)
    return [_text(end.busId) if end else "" for end in ends]


def _bus(handle: Any) -> str:
    pci = _ask(nvml.nvmlDeviceGetPciInfo, handle)
    return _text(pci.busId) if pci else "?"
