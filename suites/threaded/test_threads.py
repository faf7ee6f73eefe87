"""The collectives that torch's threaded backend knows, each with every thread as a rank."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from disttest.testing.threads import spawn_threads_and_init_comms

SIZES = pytest.mark.parametrize("size", [1, 2, 8, 64])
LIMIT_S = 60


def in_threads(size: int, body: Callable[[int], None]) -> None:
    """Run the body in that many threads, each with its rank in one group of this process."""
    seen: list[int] = []

    def run(_self: object) -> None:
        body(dist.get_rank())
        seen.append(dist.get_rank())

    spawn_threads_and_init_comms(run, world_size=size, timeout=LIMIT_S)(None)
    assert sorted(seen) == list(range(size)), "a rank did not come to its end"


def _own(rank: int) -> torch.Tensor:
    return torch.tensor([1.0, rank, rank * rank])


@SIZES
def test_ranks(size: int) -> None:
    """Each rank has a different number and thread, and all see the size."""
    threads: dict[int, int] = {}

    def body(rank: int) -> None:
        assert dist.get_world_size() == size
        threads[rank] = threading.get_ident()

    in_threads(size, body)
    assert len(set(threads.values())) == size


@SIZES
@pytest.mark.parametrize("op", ["SUM", "PRODUCT", "MIN", "MAX"])
def test_all_reduce(size: int, op: str) -> None:
    """Every thread ends with the fold of all threads' values."""
    folds = {"SUM": torch.sum, "PRODUCT": torch.prod, "MIN": torch.amin, "MAX": torch.amax}

    def body(rank: int) -> None:
        data = torch.tensor([[1.0 + (r % 3), r, -r] for r in range(size)], dtype=torch.float64)
        tensor = data[rank].clone()
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
        torch.testing.assert_close(tensor, folds[op](data, dim=0))

    in_threads(size, body)


@SIZES
def test_broadcast(size: int) -> None:
    """From the first, the middle and the last thread, its values arrive at all."""

    def body(rank: int) -> None:
        for source in {0, size // 2, size - 1}:
            tensor = _own(rank)
            dist.broadcast(tensor, src=source)
            assert tensor.tolist() == _own(source).tolist()

    in_threads(size, body)


@SIZES
def test_scatter(size: int) -> None:
    """Thread k gets piece k of the last thread's list."""
    last = size - 1

    def body(rank: int) -> None:
        output = torch.zeros(3)
        dist.scatter(output, [_own(k) + 1 for k in range(size)] if rank == last else None, src=last)
        assert output.tolist() == (_own(rank) + 1).tolist()

    in_threads(size, body)


@SIZES
def test_all_gather(size: int) -> None:
    """Slot k holds what thread k sent, everywhere."""

    def body(rank: int) -> None:
        slots = [torch.zeros(3) for _ in range(size)]
        dist.all_gather(slots, _own(rank))
        assert [slot.tolist() for slot in slots] == [_own(k).tolist() for k in range(size)]

    in_threads(size, body)


@SIZES
def test_reduce_scatter(size: int) -> None:
    """Thread k gets the sum of everybody's piece k."""

    def body(rank: int) -> None:
        output = torch.zeros(2)
        dist.reduce_scatter(output, [torch.tensor([float(k), float(rank)]) for k in range(size)])
        assert output.tolist() == [float(rank * size), float(sum(range(size)))]

    in_threads(size, body)


@SIZES
def test_all_to_all(size: int) -> None:
    """Each thread sends a different piece to each other one."""

    def body(rank: int) -> None:
        output = [torch.zeros(2) for _ in range(size)]
        dist.all_to_all(output, [torch.tensor([float(rank), float(k)]) for k in range(size)])
        assert [piece.tolist() for piece in output] == [[float(k), float(rank)] for k in range(size)]

    in_threads(size, body)


@SIZES
def test_all_gather_object(size: int) -> None:
    """Objects of all threads arrive at all."""

    def body(rank: int) -> None:
        slots: list[object] = [None] * size
        dist.all_gather_object(slots, {"rank": rank})
        assert slots == [{"rank": k} for k in range(size)]

    in_threads(size, body)


@SIZES
def test_barrier(size: int) -> None:
    """No thread leaves before the last one has come."""
    come = threading.Semaphore(0)
    left = threading.Event()

    def body(rank: int) -> None:
        if rank == size - 1:
            for _ in range(size - 1):
                assert come.acquire(timeout=LIMIT_S)
            assert not left.wait(0.05)
            dist.barrier()
            return
        come.release()
        dist.barrier()
        left.set()

    in_threads(size, body)


@pytest.mark.parametrize("size", [4, 64])
def test_subgroups(size: int) -> None:
    """Sums in the two halves of the threads keep apart."""
    halves = [list(range(size // 2)), list(range(size // 2, size))]

    def body(rank: int) -> None:
        groups = [dist.new_group(half) for half in halves]
        mine = rank // (size // 2)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=groups[mine])
        assert tensor.item() == sum(halves[mine])

    in_threads(size, body)


def test_failure_of_one_thread_is_the_tests() -> None:
    """An exception in one thread fails the test and names the thread; the others do not hang."""

    def body(rank: int) -> None:
        if rank == 2:
            raise ValueError("on purpose")
        dist.barrier()

    with pytest.raises(RuntimeError, match="(?s)Thread 2 exited with exception.*on purpose"):
        in_threads(4, body)
