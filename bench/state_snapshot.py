"""What it costs a warm test that all state is read, compared and put back: microseconds by facet, and for a whole test.

    python bench/state_snapshot.py [--rounds 2000] [--compile]

In one process with torch, NumPy and a gloo group, as a rank has them; with ``--compile`` torch.compile's settings too.
A test is read after its tear-down; what it left is where the next one begins, whether fixtures of a wider scope are alive or
not. The test whose set-up makes such fixtures is read before its call too, and the test after a leak before its set-up. The
aim is 0.3 ms.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "entrypoint"))

import numpy  # noqa: F401  # as a rank has it
import torch
import torch.distributed as dist

from disttest.runtime.rank import state_snapshot
from disttest.runtime.rank.loaded_facets import loaded_facets

AIM_MS = 0.3


def microseconds(work: Callable[[], object], rounds: int) -> float:
    """Of one call: the quickest of groups of ten, the one that others on the machine have disturbed least."""
    groups = []
    for _ in range(max(1, rounds // 10)):
        began_s = time.perf_counter()
        for _ in range(10):
            work()
        groups.append((time.perf_counter() - began_s) / 10)
    return min(groups) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    if arguments.compile:
        for name in ("torch._dynamo", "torch._inductor.config"):
            importlib.import_module(name)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("bench", store), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))

    facts = state_snapshot.read_state()

    def a_test() -> None:
        before = state_snapshot.state_before(facts, shared_fixtures=False)
        cleanup = state_snapshot.restore_state(before, before, shared_fixtures=False)
        assert cleanup[:2] == ((), ()), cleanup

    def a_test_beside_module_fixtures() -> None:
        before = state_snapshot.state_before(facts, shared_fixtures=True)
        cleanup = state_snapshot.restore_state(before, before, shared_fixtures=True)
        assert cleanup[:2] == ((), ()), cleanup

    def a_test_that_sets_them_up() -> None:
        before, at_call = (
            state_snapshot.state_before(facts, shared_fixtures=True),
            state_snapshot.read_state(),
        )
        state_snapshot.restore_state(before, at_call, shared_fixtures=True)

    for facet in loaded_facets():
        print(f"{facet.kind:24}{microseconds(facet.read, arguments.rounds):8.1f} µs")
    print()
    for work in (a_test, a_test_beside_module_fixtures, a_test_that_sets_them_up):
        whole_ms = microseconds(work, arguments.rounds) / 1000
        label = work.__name__.replace("_", " ")
        print(f"{label:30}{whole_ms:8.3f} ms, {whole_ms / AIM_MS:.2f} of the aim ({AIM_MS} ms)")
    print(f"load {os.getloadavg()[0]:.2f}, Python {sys.version.split()[0]}, torch {torch.__version__}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
