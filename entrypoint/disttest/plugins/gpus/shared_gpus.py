"""Worlds with more ranks than GPUs: the environment of their ranks, and their MPS daemon."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from disttest.model import Batch, Slot
from disttest.options.environment import environment
from disttest.planning.backends import CPU, backend_named
from disttest.plugins.gpus.mps import PIPE_VARIABLE, MpsDaemon, usable_daemon

# Thread blocks of a collective's kernel on one GPU, over all ranks.
#
# Such a kernel spins until those of its peers run as well. If the blocks of all ranks do not fit on the GPU at the same
# time, none of them ends: with NCCL's default of up to 32 per rank, four ranks hung on an H200 (132 multiprocessors).
# https://github.com/NVIDIA/nccl/issues/32
_BLOCKS = 8


class SharedGpus:
    """The shared GPUs of one run. No daemon starts before a world shares a GPU."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            folder: folder for the pipes and logs of MPS daemons.
            note: receives a sentence for the reports.
        """
        self._folder = folder
        self._note = note
        self._daemon: MpsDaemon | None = None
        self._started = 0
        self._tests = 0
        # Whether a client of the daemon may have been killed in a kernel.
        self._spoiled = False
        self._without = False

    def variables(self, batch: Batch, slots: tuple[Slot, ...]) -> dict[str, str]:
        """Return the environment of a world's ranks on these slots; empty if they share no GPU."""
        if not shares_gpus(batch, slots):
            return {}
        backend = backend_named(batch.shape.backend)
        variables = dict(backend.sharing_variables)
        if (mps := self._mps()) is not None:
            variables |= mps
            # Without MPS only one process runs at a time, and fewer blocks just make it slower: 1 MiB took 36 ms
            # instead of 5 with two ranks on an H200.
            if backend.blocks_variable:
                ranks = math.ceil(batch.shape.size / len(slots))
                variables[backend.blocks_variable] = str(max(1, _BLOCKS // ranks))
        return variables

    def world_ended(self, batch: Batch, slots: tuple[Slot, ...], *, well: bool) -> None:
        """Handle the end of a world.

        A client that is killed in a kernel leaves its MPS server unable to serve others for seconds
        (``cudaErrorDevicesUnavailable``), so the next world gets a new daemon.
        """
        if shares_gpus(batch, slots) and (self._spoiled or not well):
            self.close()

    def judged(self, batch: Batch, slots: tuple[Slot, ...], *, good: bool) -> None:
        """Handle the result of a test."""
        if shares_gpus(batch, slots):
            self._tests += 1
            self._spoiled |= not good

    def finish(self) -> None:
        """End the daemon, and note the limits of tests on shared GPUs."""
        self.close()
        if self._tests:
            self._note(
                f"{self._tests} test{'s' * (self._tests > 1)} ran with several ranks on one GPU: peer-to-peer copies, "
                "NVLink and real bandwidth were not tested"
            )

    def close(self) -> None:
        """End the daemon."""
        self._spoiled = False
        if self._daemon is not None:
            self._daemon.end()
            self._daemon = None

    def _mps(self) -> dict[str, str] | None:
        """Return the variables of an MPS client; None if MPS cannot be used."""
        if self._without:
            return None
        # One daemon serves all worlds of a run until a client is killed.
        if self._daemon is not None and self._daemon.lives:
            return self._daemon.environment
        if self._daemon is None and usable_daemon(dict(environment())):
            own = environment().get(PIPE_VARIABLE)
            return {PIPE_VARIABLE: own} if own else {}
        self.close()
        self._started += 1
        daemon = MpsDaemon(self._folder / f"mps{self._started}")
        if reason := daemon.start():
            self._without = True
            self._note(
                f"ranks that share a GPU take turns on it, since MPS cannot be used: {reason}. "
                "A small collective takes milliseconds then, instead of 0.1 ms"
            )
            return None
        self._daemon = daemon
        return daemon.environment


def shares_gpus(batch: Batch, slots: tuple[Slot, ...]) -> bool:
    """Whether several ranks of a world on these slots share a GPU."""
    ranks = batch.shape.size if batch.shape.device != CPU and not batch.shares else 0
    return bool(slots) and ranks > len(slots)
