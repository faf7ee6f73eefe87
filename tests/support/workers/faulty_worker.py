"""A preflight worker whose devices have planted faults: DISTTEST_FAULTS="cpu:1=wrong_matmul cpu:2=hang"."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from disttest.plugins.gpus.preflight import worker


def _faults() -> dict[str, str]:
    return dict(part.split("=") for part in os.environ["DISTTEST_FAULTS"].split())


def _plant(name: str, check: str) -> None:
    """Misbehave if that was planted for this device and check."""
    how, _, where = _faults().get(name, "").partition("@")
    if where != check:
        return
    if how == "hang":
        Path(os.environ.get("DISTTEST_HANGS_NOW", os.devnull)).touch()
        time.sleep(3600)
    if how == "crash":
        signal.raise_signal(signal.SIGSEGV)
    if how == "leave":
        os._exit(0)
    if how == "raise":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nsecond line")
    if how == "wrong":
        raise worker.CheckFailed("planted")


class FaultyBench(worker.Bench):
    def context(self):
        _plant(self.target.name, "context")
        return super().context()

    def allocate(self):
        _plant(self.target.name, "allocate")
        return super().allocate()

    def copy(self):
        _plant(self.target.name, "copy")
        return super().copy()

    def timed(self, work):
        seconds = super().timed(work)
        if _faults().get(self.target.name) == "slow_clock":
            return seconds + 3600
        return seconds

    def matmul(self):
        import torch

        fault = _faults().get(self.target.name)
        if fault in ("wrong_matmul", "flaky_matmul"):
            exact, calls = torch.Tensor.__matmul__, itertools.count()

            def off(left, right):
                product = exact(left, right)
                if product.dtype == torch.float32 and (fault == "wrong_matmul" or next(calls) % 2):
                    product[3, 5] += 1.0  # one flipped bit of one element
                return product

            torch.Tensor.__matmul__ = off
        return super().matmul()

    def memory(self):
        import torch

        if _faults().get(self.target.name) == "stuck_bit":
            exact = torch.bitwise_xor

            def stuck(left, right, *, out):
                exact(left, right, out=out)
                out[1000] |= 1 << 40
                out[1001] &= ~(1 << 40)

            torch.bitwise_xor = stuck
        return super().memory()


def faulty_copy(source, target):
    names = {source.target.name, target.target.name}
    if names == set(os.environ.get("DISTTEST_BAD_PAIR", "").split(",")):
        raise worker.CheckFailed("bytes changed on the way between the two")
    if names == set(os.environ.get("DISTTEST_HANGING_PAIR", "").split(",")):
        time.sleep(3600)
    return real_copy(source, target)


real_copy = worker.copy_between


class FaultyCollectives(worker.Collectives):
    def contribution(self):
        block = super().contribution()
        if _faults().get(self.job.target.name) == "wrong_numbers":
            block[7] = -1.0
        return block

    def all_gather(self):
        _plant(self.job.target.name, "all_gather")
        return super().all_gather()

    def rendezvous(self):
        _plant(self.job.target.name, "rendezvous")
        return super().rendezvous()


def main(_arguments: Sequence[str]) -> None:
    worker.copy_between = faulty_copy
    worker.Worker(FaultyBench, FaultyCollectives).serve()
