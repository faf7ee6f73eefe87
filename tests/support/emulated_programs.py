"""Programs that tests/cuda runs on emulated GPUs, each printing what it saw as JSON: case -> answer.

A case runs in a process forked before CUDA was initialised, with faults of its own, so that torch is imported once.
Run as ``python emulated_programs.py devices|faults|ranks FOLDER``.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER = Path(sys.argv[2])
ENQUEUED: list[object] = []
"""What streams are to call must live until then."""


def fork(function: Callable[..., object], *arguments: object, **environ: str) -> Callable[[], object]:
    """Start it in a process of its own; the result waits for its answer, which is the error if it raised one."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os.environ.update(environ)
        try:
            answer = function(*arguments)
        except BaseException as error:
            answer = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            if os.environ.get("VERBOSE"):
                traceback.print_exc()
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)

    def wait() -> object:
        with os.fdopen(read, "rb") as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        return json.loads(text) if text else f"ended by {status}"

    return wait


def with_faults(function: Callable[..., object], faults: str, *arguments: object) -> object:
    return fork(function, *arguments, EMULATED_CUDA_FAULTS=faults)()


# ---- devices


def visible() -> list[str]:
    return [str(torch.cuda.get_device_properties(i).uuid)[-2:] for i in range(torch.cuda.device_count())]


def a_missing_wait() -> list[float]:
    """What a stream reads that does not wait for another one's copy, and what it reads when it does."""
    side, x = torch.cuda.Stream(), torch.ones(1, device="cuda")
    host = torch.full((1,), 4.0).pin_memory()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x.copy_(host, non_blocking=True)
    early = (x + 0).item()
    torch.cuda.current_stream().wait_stream(side)
    return [early, (x + 0).item()]


def an_event() -> list[bool]:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    host = torch.ones(1).pin_memory()
    with torch.cuda.stream(side):
        torch.empty(1, device="cuda").copy_(host, non_blocking=True)
        event.record()
    before = event.query()
    event.synchronize()
    return [before, event.query(), side.query()]


def out_of_memory() -> list[object]:
    free, total = torch.cuda.mem_get_info()
    try:
        torch.empty(total, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        return [free < total, str(error).split(".")[0]]
    return [free < total, "no error"]


def held_by_another() -> list[object]:
    """What NVML and this process see of the memory that another process holds."""
    import pynvml

    read, write = os.pipe()
    release, go = os.pipe()

    def hold() -> None:
        kept = torch.empty(512 << 20, dtype=torch.uint8, device="cuda:1")
        os.write(write, b"x")
        os.read(release, len(kept[:1]))

    holder = fork(hold)
    os.read(read, 1)
    torch.cuda.set_device(1)
    free, total = torch.cuda.mem_get_info()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    held = sorted(p.usedGpuMemory >> 20 for p in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    os.write(go, b"x")
    holder()
    left = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)]
    return [(total - free) >> 20, held, left == [os.getpid()]]


def another_process_writes() -> list[float]:
    """CUDA IPC: a tensor in another process is the same memory."""
    import torch.multiprocessing as mp

    x = torch.zeros(3, device="cuda")
    there = mp.get_context("spawn").Process(target=fill_with_seven, args=(x,))
    there.start()
    there.join()
    return x.tolist()


def fill_with_seven(x: torch.Tensor) -> None:
    x.fill_(7)
    torch.cuda.synchronize()


def event_of_another_process() -> list[bool]:
    """Whether it was reached: while work before it is held up over there, and after this process has waited for it."""
    read, write = os.pipe()
    held, release = os.pipe()

    def record() -> None:
        event = torch.cuda.Event(interprocess=True)
        handle = event.ipc_handle()  # taken before it is recorded, as TensorPipe does
        enqueue(torch.cuda.current_stream(), partial(os.read, held, 1))
        event.record()
        os.write(write, handle)
        event.synchronize()
        os.read(held, 1)  # an event lives as long as the process that made it

    recorder = fork(record)
    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), os.read(read, 64))
    early = event.query()
    os.write(release, b"x")
    event.synchronize()
    seen = [early, event.query()]
    os.write(release, b"x")
    recorder()
    return seen


def an_earlier_record() -> list[bool]:
    """Whether who waits for it goes on: when the event was recorded again elsewhere, and when it is reached itself.

    The last answer: whether the last of many records is reached in the end.
    """
    held, release = os.pipe()
    passed, passing = os.pipe()
    busy, waiting, idle = (torch.cuda.Stream() for _ in range(3))
    event = torch.cuda.Event(interprocess=True)
    enqueue(busy, partial(os.read, held, 1))
    event.record(busy)
    waiting.wait_event(event)
    enqueue(waiting, partial(os.write, passing, b"x"))
    event.record(idle)  # as TensorPipe does once the other side has queued its wait
    event.synchronize()
    early = bool(select.select([passed], [], [], 0.5)[0])
    os.write(release, b"x")
    late = os.read(passed, 1) == b"x"
    for _ in range(100):
        event.record(busy)
    event.synchronize()
    return [early, late, event.query()]


def enqueue(stream: torch.cuda.Stream, function: Callable[[], object]) -> None:
    """Have a stream call a function."""
    called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: function())
    ENQUEUED.append(called)
    handle = ctypes.c_void_p(stream.cuda_stream)
    ctypes.CDLL("libcudart.so.13").cudaLaunchHostFunc(handle, called, None)


def gpu_only_operators() -> dict[str, float]:
    """How far results and gradients are from those of the CPU."""
    torch.manual_seed(0)
    cells = {"LSTM": torch.nn.LSTM(5, 7), "GRU": torch.nn.GRU(5, 7)}
    return {name: _distance(cell, torch.randn(3, 2, 5)) for name, cell in cells.items()} | {
        "softmax to float": _distance_of_softmax(),
        "depthwise": _distance(torch.nn.Conv2d(4, 4, 3, groups=4), torch.randn(2, 4, 8, 8)),
    }


def _distance_of_softmax() -> float:
    """From half to float, and the gradient back to half, as autocast has it."""
    half = torch.randn(4, 5).half()
    here, there = half.float().requires_grad_(), half.cuda().requires_grad_()
    for x in (here, there):
        torch.softmax(x, 1, dtype=torch.float32).sin().sum().backward()
    assert there.grad.dtype == torch.float16
    return (here.grad.half() - there.grad.cpu()).abs().max().item()


def _distance(module: torch.nn.Module, x: torch.Tensor) -> float:
    here, there = _results(module, x), _results(module.cuda(), x.cuda())
    return max((a - b.cpu()).abs().max().item() for a, b in zip(here, there, strict=True))


def _results(module: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    x = x.detach().requires_grad_()
    out = module(x)
    out = out[0] if isinstance(out, tuple) else out
    out.sin().sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]


def mixed_devices() -> object:
    return torch.ones(2, device="cuda") + torch.ones(2)


def a_graph() -> object:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        return "captured"


def devices() -> dict[str, object]:
    second = "GPU-eeeeeeee-0000-0000-0000-000000000001"
    return {
        "visible": {
            given: fork(visible, CUDA_VISIBLE_DEVICES=given)()
            for given in ("1,0", second, "0,9,1", "1,1", "")
        },
        "missing wait": with_faults(a_missing_wait, "slow-copies us=200000"),
        "event": with_faults(an_event, "slow-copies us=200000"),
        "out of memory": fork(out_of_memory)(),
        "held by another": fork(held_by_another)(),
        "ipc": fork(another_process_writes)(),
        "event of another": fork(event_of_another_process)(),
        "earlier record": fork(an_earlier_record)(),
        "GPU-only operators": fork(gpu_only_operators)(),
        "mixed devices": fork(mixed_devices)(),
        "graph": fork(a_graph)(),
    }


# ---- faults of a device


def two_steps() -> float:
    """A launch, a fault if one was asked for, and what the program sees of it."""
    x = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    (FOLDER / "now").touch()
    try:
        return (x + 1).sum().item()
    finally:
        (FOLDER / "now").unlink()


def hangs() -> str:
    x = torch.ones(4, device="cuda:0")
    (FOLDER / "now").touch()
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    torch.cuda.synchronize()
    return f"did not hang: {x[0]}"


def seen_by_nvml() -> list[object]:
    import pynvml

    pynvml.nvmlInit()
    answers: list[object] = []
    for index in range(2):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        try:
            xid = pynvml.nvmlEventSetWait_v2(events, 0).eventData
        except pynvml.NVMLError_Timeout:
            xid = 0
        ecc = pynvml.nvmlDeviceGetTotalEccErrors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 0)
        answers.append([ecc, pynvml.nvmlDeviceGetRemappedRows(handle)[2], xid])
    return answers


def lost_for_nvml() -> str:
    import pynvml

    pynvml.nvmlInit()
    return str(pynvml.nvmlDeviceGetHandleByIndex(0))


def faults() -> dict[str, object]:
    now = f"when={FOLDER / 'now'}"
    return {
        "none": with_faults(two_steps, ""),
        "of another device": with_faults(two_steps, f"sticky device=1 {now}"),
        "sticky": with_faults(two_steps, f"sticky device=0 {now}"),
        "assert": with_faults(two_steps, f"sticky error=710 {now}"),
        "after": with_faults(two_steps, "sticky after=2"),
        "oom": with_faults(two_steps, "oom device=0"),
        "hang": with_faults(hangs, f"hang device=0 {now}"),
        "NVML": with_faults(seen_by_nvml, "ecc device=1 count=3; remap device=1; xid device=0 code=79"),
        "vanish": with_faults(two_steps, f"vanish device=0 {now}"),
        "vanish in NVML": fork(lost_for_nvml)(),  # since a process has seen it
    }


# ---- ranks


def as_rank(rank: int, gpu: int, store: str, limit_s: float, body: Callable[[int], object]) -> object:
    torch.cuda.set_device(gpu)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=limit_s),
        device_id=torch.device("cuda", gpu),
    )
    return body(rank)


def world(
    body: Callable[[int], object], faults: str = "", *, limit_s: float = 30, gpus: tuple[int, int] = (0, 1)
) -> list[object]:
    """What each of two ranks answers."""
    store = FOLDER / "store"
    environ = {"EMULATED_CUDA_FAULTS": faults, "TORCH_NCCL_BLOCKING_WAIT": "1"}
    ranks = [fork(as_rank, rank, gpu, str(store), limit_s, body, **environ) for rank, gpu in enumerate(gpus)]
    answers = [rank() for rank in ranks]
    store.unlink(missing_ok=True)
    return answers


def reduces(rank: int) -> object:
    x = torch.full((4,), float(rank + 1), device="cuda")
    for _ in range(3):
        wait_for_reduced(x)
    return x[0].item()


def wait_for_reduced(x: torch.Tensor) -> None:
    """As torch waits when TORCH_NCCL_BLOCKING_WAIT is set: errors and time-outs are raised here."""
    dist.all_reduce(x, async_op=True).wait()


def reduces_for_ever(rank: int) -> object:
    x = torch.ones(4, device="cuda")
    while True:
        wait_for_reduced(x)


def in_launch_order(rank: int) -> object:
    """Two collectives of one group on two streams, called in one order: the streams do not matter."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    a, b = torch.ones(4, device="cuda"), torch.full((4,), 10.0, device="cuda")
    torch.cuda.synchronize()
    for _ in range(50):
        with torch.cuda.stream(first if rank else second):
            dist.all_reduce(a, op=dist.ReduceOp.AVG)
        with torch.cuda.stream(second if rank else first):
            dist.all_reduce(b, op=dist.ReduceOp.AVG)
    torch.cuda.synchronize()
    return [a[0].item(), b[0].item()]


def small_sends_do_not_wait(rank: int) -> object:
    """The root of a small broadcast and the sender of a small message are done before anyone receives."""
    x = torch.full((1000,), float(5 - rank), device="cuda")
    dist.all_reduce(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()
    if rank == 0:
        dist.broadcast(x, 0)
        dist.send(x, 1)
        torch.cuda.synchronize()
        (FOLDER / "sent").touch()
        return "sent"
    while not (FOLDER / "sent").exists():
        pass
    dist.broadcast(x, 0)
    y = torch.zeros_like(x)
    dist.recv(y, 0)
    return [x[0].item(), y[0].item()]


def uneven(rank: int) -> object:
    """Large enough to be read from the other's memory, and of different sizes."""
    sizes = [70_000, 50_000]
    mine = torch.full((sizes[rank],), float(rank + 1), device="cuda")
    gathered = [torch.empty(size, device="cuda") for size in sizes]
    dist.all_gather(gathered, mine)
    parts = [torch.full((size,), float(rank + 1), device="cuda") for size in sizes]
    scattered = torch.empty(sizes[rank], device="cuda")
    dist.reduce_scatter(scattered, parts)
    return [[t.unique().tolist() for t in gathered], scattered.unique().tolist()]


def batch_norm(rank: int) -> object:
    """Synchronised over two ranks it is the plain one over both halves; distance of results and gradients."""
    torch.manual_seed(0)
    x, plain = torch.randn(6, 3, 4, dtype=torch.float64), torch.nn.BatchNorm2d(3).double()
    synchronised = torch.nn.SyncBatchNorm(3).double().cuda()
    whole = x.clone().requires_grad_()
    plain(whole[..., None]).sin().sum().backward()
    begin, end = (0, 2) if rank == 0 else (2, 6)
    half = x[begin:end].cuda().requires_grad_()
    synchronised(half[..., None]).sin().sum().backward()
    weight = synchronised.weight.grad
    dist.all_reduce(weight)
    pairs = [
        (half.grad.cpu(), whole.grad[begin:end]),
        (weight.cpu(), plain.weight.grad),
        (synchronised.running_mean.cpu(), plain.running_mean),
        (synchronised.running_var.cpu(), plain.running_var),
    ]
    return max((a - b).abs().max().item() for a, b in pairs)


def seconds_of_reducing(rank: int) -> object:
    import time

    begin_s = time.monotonic()
    reduces(rank)
    torch.cuda.synchronize()
    return time.monotonic() - begin_s


def dies(rank: int) -> object:
    reduces(rank)
    if rank == 1:
        os._exit(3)
    return reduces_for_ever(rank)


def ranks() -> dict[str, object]:
    return {
        "reduces": world(reduces),
        "launch order": world(in_launch_order),
        "small sends": world(small_sends_do_not_wait),
        "uneven": world(uneven),
        "batch norm": world(batch_norm),
        "one GPU": world(reduces, gpus=(0, 0)),
        "NCCL error": world(reduces_for_ever, "nccl-error rank=1 after=2", limit_s=3),
        "slow peer": world(seconds_of_reducing, "slow-peer rank=1 ms=300"),
        "lost peer": world(reduces, "lost-peer rank=1 after=1", limit_s=1),
        "dead peer": world(dies, "peer-death"),
    }


if __name__ == "__main__":
    print(json.dumps({"devices": devices, "faults": faults, "ranks": ranks}[sys.argv[1]]()))
