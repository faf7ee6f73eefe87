"""A preflight worker: it imports torch once, then executes jobs until its input ends.

It runs in a bounded child. Before each check it reports its name, so that the parent can name the one that hangs.
There is one bench for each device. Each of its methods is one check: it returns a measurement or raises
:class:`CheckFailed`.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from disttest.host.bounded import send_to_parent
from disttest.plugins.gpus.preflight.messages import (
    PAIR_CHECK,
    AnyJob,
    Began,
    CollectiveJob,
    DeviceJob,
    Level,
    Measured,
    PairsJob,
    Ready,
    Target,
)

Measure = tuple[float, str]
"""A value and its unit."""

MIB = 1 << 20

_COPY = {Level.QUICK: 64 * MIB, Level.FULL: 1024 * MIB}
_PATTERN = {Level.QUICK: 128 * MIB, Level.FULL: 4096 * MIB}
_ON_CPU = 16 * MIB
"""Bytes of any check on the CPU, where it proves the harness and not the memory."""


class CheckFailed(Exception):
    """The device gave a wrong answer."""

    def __init__(self, message: str, *, accused: int | None = None) -> None:
        super().__init__(message)
        self.accused = accused


class Bench:
    """Checks of one device. Sizes depend on the level and, for large ones, on the free memory."""

    def __init__(self, target: Target, level: Level, index: int = 0) -> None:
        self.target = target
        self.level = level
        self.device = torch.device("cuda", index) if target.device == "cuda" else torch.device("cpu")

    @property
    def is_cuda(self) -> bool:
        """Whether it computes on a GPU."""
        return self.device.type == "cuda"

    def checks(self) -> tuple[Callable[[], Measure | None], ...]:
        """Return all checks of the device, in order: each needs those before it."""
        return (self.context, self.allocate, self.copy, self.matmul, self.memory, self.timing)

    def context(self) -> None:
        """Check that the device can be opened and computes."""
        one = torch.ones(1, device=self.device)
        self.expect(int((one + one).item()) == 2, "1 + 1 is not 2")

    def allocate(self) -> Measure:
        """Check that a share of the free memory can be allocated."""
        size = self.size(_PATTERN)
        block = torch.empty(size, dtype=torch.uint8, device=self.device)
        self.synchronize()
        del block
        return size / MIB, "MiB"

    def copy(self) -> Measure:
        """Check that data copied to the device comes back unchanged; measure GB/s to the device."""
        size = self.size(_COPY)
        source = _bytes(size)
        # Other memory is copied through a buffer of the driver, whose speed would be measured instead.
        source = source.pin_memory() if self.is_cuda else source
        there = torch.empty_like(source, device=self.device)
        seconds = self.timed(lambda: there.copy_(source, non_blocking=True))
        self.expect(torch.equal(there.cpu(), source), "bytes changed on the way to the device and back")
        return size / seconds / 1e9, "GB/s"

    def matmul(self) -> Measure:
        """Compare a matrix product in float32 with the same in float64 on the CPU; measure TFLOP/s."""
        # The error limit is that of a sum of n products, each rounded: n · eps · |a|·|b|.
        n = 1024 if self.is_cuda else 256
        # The same numbers each time, so that a failure can be repeated.
        generator = torch.Generator().manual_seed(n)
        a, b = (torch.randn(n, n, dtype=torch.float64, generator=generator) for _ in range(2))
        a, b = a.float(), b.float()
        left, right = a.to(self.device), b.to(self.device)
        # TF32 rounds the inputs to 10 bits of the fraction, and the limit below is that of float32.
        torch.backends.cuda.matmul.allow_tf32 = False
        product = left @ right
        # The same kernel on the same data gives the same bits on a device that works.
        self.expect(torch.equal(product, left @ right), "the same matrix product came out differently")
        seconds = self.timed(lambda: torch.matmul(left, right, out=torch.empty_like(product)))
        exact, bound = a.double() @ b.double(), a.abs().double() @ b.abs().double()
        worst = ((product.cpu().double() - exact).abs() / bound).max().item()
        limit = n * torch.finfo(torch.float32).eps
        self.expect(worst <= limit, f"a matrix product is off by {worst:.1e}, {limit:.1e} is allowed")
        return 2 * n**3 / seconds / 1e12, "TFLOP/s"

    def memory(self) -> Measure:
        """Check that a part of the memory keeps written data."""
        words = self.size(_PATTERN) // 8
        block = torch.empty(words, dtype=torch.int64, device=self.device)
        # Each word gets a different value, so that a write to a wrong address shows as well.
        address = torch.arange(words, dtype=torch.int64, device=self.device)
        # A pattern and its complement: each bit is once 0 and once 1.
        for pattern in (0x5555555555555555, ~0x5555555555555555):
            torch.bitwise_xor(address, pattern, out=block)
            self.synchronize()
            bad = int((block.bitwise_xor_(pattern) != address).sum().item())
            self.expect(bad == 0, f"{bad} of {words} words changed after they were written")
        return words * 8 / MIB, "MiB"

    def timing(self) -> Measure:
        """Check that the device's clock runs, not faster than the host's; measure ms of a known piece of work."""
        work = torch.ones(1 << 20, device=self.device)
        started_s = time.perf_counter()
        measured_s = self.timed(lambda: work.mul_(1.0))
        wall_s = time.perf_counter() - started_s
        self.expect(
            0 < measured_s <= wall_s * 1.5,
            f"its clock measured {measured_s:.2e} s, the host's clock {wall_s:.2e} s",
        )
        return measured_s * 1e3, "ms"

    def timed(self, work: Callable[[], object]) -> float:
        """Return the seconds that a piece of work takes on the device."""
        if not self.is_cuda:
            started_s = time.perf_counter()
            work()
            return max(time.perf_counter() - started_s, 1e-9)
        event: Any = torch.cuda.Event  # torch.cuda.Event has no annotations
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def expect(self, holds: bool, otherwise: str) -> None:
        """Fail the check unless a condition holds."""
        if not holds:
            raise CheckFailed(otherwise)

    def size(self, sizes: dict[Level, int]) -> int:
        """Return the bytes of a check: at most a quarter of the free memory."""
        if not self.is_cuda:
            return _ON_CPU
        free, _ = torch.cuda.mem_get_info(self.device)
        return min(sizes[self.level], free // 4) // 8 * 8


def _bytes(size: int) -> Any:
    return torch.arange(size // 8, dtype=torch.int64).view(torch.uint8)


def copy_between(source: Bench, target: Bench) -> Measure:
    """Copy between two devices and compare; measure GB/s."""
    data = _bytes(source.size(_COPY)).to(source.device)
    there = torch.empty_like(data, device=target.device)
    there.copy_(data)  # the first copy sets up the connection
    source.synchronize()
    started_s = time.perf_counter()
    there.copy_(data)
    source.synchronize()
    target.synchronize()
    seconds = max(time.perf_counter() - started_s, 1e-9)
    source.expect(torch.equal(there.cpu(), data.cpu()), "bytes changed on the way between the two")
    return data.numel() / seconds / 1e9, "GB/s"


class Collectives:
    """One rank of the collectives over all devices."""

    def __init__(self, job: CollectiveJob, bench: Bench) -> None:
        self.job = job
        self.bench = bench
        # gloo is for devices that NCCL cannot serve. Its tensors are in host memory.
        self.device = bench.device if job.backend == "nccl" else torch.device("cpu")
        self._block = _ON_CPU // 4
        """Bytes that each rank contributes."""

    def checks(self) -> tuple[Callable[[], Measure | None], ...]:
        """Return all checks, in an order that is the same on every rank."""
        return (self.rendezvous, self.broadcast, self.all_gather, self.all_reduce)

    def rendezvous(self) -> None:
        """Check that the ranks find each other and complete a first collective."""
        store = FileStore(self.job.store, self.job.size)
        if self.job.backend == "nccl":
            # A barrier of NCCL runs on the current device.
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            self.job.backend,
            store=store,
            rank=self.job.rank,
            world_size=self.job.size,
            timeout=timedelta(seconds=self.job.timeout_s),
        )
        dist.barrier()
        if self.bench.is_cuda:
            self._block = self._agree_on_block(store)

    def _agree_on_block(self, store: Any) -> int:
        """Agree on a block size with all ranks: the largest check, all_gather, may need at most half of the free
        memory.

        That check holds a block of each rank twice, because torch gathers into one buffer, and its own block. The
        ranks exchange their free memory through the store, which needs no device.
        """
        size = self.job.size
        free, _ = torch.cuda.mem_get_info(self.bench.device)
        store.set(f"free/{self.job.rank}", str(free))
        least = min(int(store.get(f"free/{rank}")) for rank in range(size))
        return min(_COPY[self.job.level], max(MIB, least // (2 * (2 * size + 1)))) // 8 * 8

    def contribution(self) -> Any:
        """Return the data of this rank: a tensor filled with its rank plus one."""
        return torch.full((self._block // 4,), float(self.job.rank + 1), device=self.device)

    def broadcast(self) -> None:
        """Check that each rank's numbers reach all others."""
        for root in range(self.job.size):
            block = self.contribution()
            dist.broadcast(block, src=root)
            self._compare(block, root + 1, accused=root)

    def all_gather(self) -> None:
        """Check that all numbers reach all ranks, each in its place."""
        parts = [torch.empty(self._block // 4, device=self.device) for _ in range(self.job.size)]
        dist.all_gather(parts, self.contribution())
        for rank, part in enumerate(parts):
            self._compare(part, rank + 1, accused=rank)

    def all_reduce(self) -> Measure | None:
        """Check the sum on every rank; measure the bus bandwidth in GB/s if there is more than one."""
        # Bus bandwidth as in nccl-tests: bytes / seconds · 2 (n - 1) / n.
        size = self.job.size
        first = self.contribution()
        # The first call sets up its connections. The second one is measured.
        dist.all_reduce(first)
        self._compare(first, size * (size + 1) / 2)
        block = self.contribution()
        dist.barrier()
        started_s = time.perf_counter()
        dist.all_reduce(block)
        # Over NCCL, all_reduce returns when the call is queued. This waits for the GPU.
        block[0].item()
        seconds = max(time.perf_counter() - started_s, 1e-9)
        self._compare(block, size * (size + 1) / 2)
        if size == 1:  # no data was moved
            return None
        factor = 2 * (size - 1) / size
        return block.numel() * block.element_size() / seconds * factor / 1e9, "GB/s"

    def close(self) -> None:
        """Destroy the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _compare(self, block: Any, expected: float, *, accused: int | None = None) -> None:
        low, high = block.min().item(), block.max().item()
        if not (math.isclose(low, expected) and math.isclose(high, expected)):
            raise CheckFailed(f"expected {expected:g} everywhere, got {low:g} to {high:g}", accused=accused)


def main(_arguments: Sequence[str]) -> None:
    """Execute jobs with the real benches."""
    Worker().serve()


class Worker:
    """Executes jobs. Tests plant faults by passing other benches."""

    def __init__(self, bench: type[Bench] = Bench, collectives: type[Collectives] = Collectives) -> None:
        self._bench = bench
        self._collectives = collectives
        self._torn = False

    def serve(self) -> None:
        """Execute jobs until the input ends."""
        # Ranks on the CPU share the machine; with one thread each they do not wait for each other.
        torch.set_num_threads(1)
        decoder = msgspec.json.Decoder(AnyJob)
        send_to_parent(Ready())
        for line in sys.stdin:
            self._do(decoder.decode(line))
            _return_memory()
            send_to_parent(Ready())
            if self._torn:
                return

    def _do(self, job: AnyJob) -> None:
        match job:
            case DeviceJob():
                self._run_all(self._bench(job.target, job.level).checks())
            case PairsJob():
                self._pairs(job)
            case CollectiveJob():
                self._collective(job)

    def _pairs(self, job: PairsJob) -> None:
        benches = [self._bench(target, job.level, index) for index, target in enumerate(job.targets)]
        for pair in job.pairs:
            send_to_parent(Began(check=PAIR_CHECK, pair=pair))
            first, second = (benches[place] for place in pair)
            _measure(lambda first=first, second=second: copy_between(first, second))  # type: ignore[misc]

    def _collective(self, job: CollectiveJob) -> None:
        collectives = self._collectives(job, self._bench(job.target, job.level))
        if self._run_all(collectives.checks()):
            collectives.close()
        else:
            # Destroying a group whose other ranks wait can take as long as its timeout.
            self._torn = True

    def _run_all(self, checks: Sequence[Callable[[], Measure | None]]) -> bool:
        """Run checks until one fails; return whether all passed."""
        for check in checks:
            send_to_parent(Began(check=check.__name__))
            if not _measure(check):
                return False
        return True


def _return_memory() -> None:
    """Release cached memory for other workers. A device that refuses has already failed a check."""
    cuda: Any = torch.cuda  # torch.cuda has no annotations
    if cuda.is_initialized():
        with contextlib.suppress(RuntimeError):
            cuda.empty_cache()


def _measure(check: Callable[[], Measure | None]) -> bool:
    started_s = time.perf_counter()
    try:
        value, unit = check() or (None, "")
    except CheckFailed as failure:
        send_to_parent(Measured(passed=False, message=str(failure), accused=failure.accused))
        return False
    except Exception as error:  # noqa: BLE001 - any error of a device's library is a finding
        send_to_parent(Measured(passed=False, message=f"{type(error).__name__}: {_first_line(error)}"))
        return False
    send_to_parent(Measured(passed=True, value=value, unit=unit, duration_s=time.perf_counter() - started_s))
    return True


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
