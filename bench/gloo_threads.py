"""What an all_reduce over gloo costs where its message loops are batch work, as in ranks of disttest, beside torch as it is.

    python bench/gloo_threads.py [--sizes 2,4,8] [--turns 3] [--calls 400]

Ranks are forks that do nothing else: calls one after the other, and calls with a millisecond of work before each, which is how
tests look. Both ways take turns, on the machine as it is and beside as many programs that never rest as it has processors. Prints
milliseconds of a call (medians over the turns) and their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "entrypoint"))

from disttest.plugins.gloo_threads.message_threads import give_way

WORK_S = 0.001


def work() -> None:
    """A millisecond of this thread's processor time."""
    until_s = time.thread_time() + WORK_S
    while time.thread_time() < until_s:
        pass


def call_ms(before: Callable[[], object], calls: int) -> float:
    """Of one call, without what comes before it."""
    x, took_s = torch.ones(8), 0.0
    dist.barrier()
    for _ in range(calls):
        before()
        began_s = time.perf_counter()
        dist.all_reduce(x)
        took_s += time.perf_counter() - began_s
    dist.barrier()
    return 1000 * took_s / calls


def be_rank(rank: int, size: int, folder: Path, calls: int, *, calm: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    if calm:
        give_way()
    took = [call_ms(before, calls) for before in (lambda: None, work)]
    if rank == 0:
        (folder / "took").write_text(" ".join(map(str, took)))


def run(size: int, calls: int, *, calm: bool) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(size):
            if not (pid := os.fork()):
                be_rank(rank, size, Path(folder), calls, calm=calm)
                os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        return [float(word) for word in Path(folder, "took").read_text().split()]


@contextmanager
def restless(count: int) -> Iterator[None]:
    """So many programs that never rest."""
    pids = []
    for _ in range(count):
        if not (pid := os.fork()):
            while True:
                pass
        pids.append(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="2,4,8")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--calls", type=int, default=400)
    given = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    print(f"{'ranks':>5}  {'machine':10}{'before a call':16}{'torch':>10}{'disttest':>10}{'ratio':>8}")
    for size in map(int, given.sizes.split(",")):
        for machine, others in (("as it is", 0), ("busy", os.cpu_count() or 1)):
            took: dict[bool, list[list[float]]] = defaultdict(list)
            with restless(others):
                for _ in range(given.turns):
                    for calm in (False, True):
                        took[calm].append(run(size, given.calls, calm=calm))
            for index, before in enumerate(("nothing", "1 ms of work")):
                theirs, ours = (statistics.median(t[index] for t in took[calm]) for calm in (False, True))
                print(
                    f"{size:5}  {machine:10}{before:16}{theirs:7.2f} ms{ours:7.2f} ms{theirs / ours:8.1f}",
                    flush=True,
                )
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
