"""Repeated questions to the driver about which processes hold the GPUs, and what a world has left there.

An answer takes a millisecond. One child keeps NVML open for the whole run: a new one for each world would cost more
than a small world. If the driver hangs or crashes the child, the GPU that was being asked is broken. A new child asks
about the others.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable

import msgspec

from disttest.host.bounded import BoundedChild, Ended
from disttest.plugins.gpus.limits import DRIVER_STALL_S
from disttest.plugins.gpus.machine import Gpu, used_by_others
from disttest.plugins.gpus.probe import AnyMessage, Asking, Found, ProbeRefused, QuestionAnswered, start_probe

_decoder: msgspec.json.Decoder[AnyMessage] = msgspec.json.Decoder(AnyMessage)


class GpuWatch:
    """A client of the driver: ask, wait for a descriptor or a second, and advance until the answer is complete."""

    def __init__(self, gpus: Iterable[Gpu], *, library: str = "", stall_s: float = DRIVER_STALL_S) -> None:
        """Prepare the watch; the child starts with the first question.

        Args:
            gpus: the known GPUs, so that one that no longer answers can be named.
            library: path of the NVML library; found by the dynamic linker unless given.
            stall_s: limit of one answer of the driver.
        """
        self._known = {gpu.index: gpu for gpu in gpus}
        self._library = library
        self._stall_s = stall_s
        self._child: BoundedChild | None = None
        self._faults: dict[int, str] = {}
        """Faults of GPUs that are no longer asked about."""
        self._answers: dict[int, Gpu] = {}
        self._last = Asking(what="nvmlInit")
        self._asked = self._answered = False
        self._refused = ""

    @property
    def pids(self) -> tuple[int, ...]:
        """Pid of the child, which must not count as a leftover."""
        return (self._child.pid,) if self._child is not None else ()

    def ask(self) -> bool:
        """Ask a question; return False while an earlier one is open, because its answer may be older."""
        if self._asked:
            return False
        self._asked, self._answered, self._refused = True, False, ""
        self._answers.clear()
        if self._child is None or self._child.ended is not None:
            self._child = self._start()
        self._child.send({}, stall_s=self._stall_s)
        return True

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that become readable when :meth:`advance` has work."""
        return self._child.descriptors() if self._child is not None and self._asked else ()

    def advance(self) -> tuple[Gpu, ...] | None:
        """Return the GPUs with their current memory, processes and faults; None if the answer is not complete."""
        if not self._asked or self._child is None:
            return None
        ended = self._child.advance()
        if not self._answered and ended is None:
            return None
        self._asked = False
        if self._answered:
            return tuple(map(self._now, self._known.values()))
        # The child has hung or crashed in a question about this GPU. A new child is asked about the others.
        if not self._refused and self._last.gpu is not None:
            self._faults[self._last.gpu] = f"the NVML probe {ended} when asked about this GPU"
            self.ask()
            return None
        reason = self._refused or f"{self._last.what}: the NVML probe {_in_words(ended)}"
        return tuple(msgspec.structs.replace(gpu, fault=reason) for gpu in self._known.values())

    def close(self) -> None:
        """Kill the child."""
        if self._child is not None:
            self._child.kill()

    def _start(self) -> BoundedChild:
        return start_probe(
            "--watch",
            library=self._library,
            skip=self._faults,
            # It lives as long as the run. Only its silence after a question ends it.
            timeout_s=math.inf,
            stall_s=self._stall_s,
            on_line=self._on_line,
        )

    def _on_line(self, line: bytes) -> None:
        try:
            message = _decoder.decode(line)
        except msgspec.DecodeError:
            return  # output of the driver
        match message:
            case Asking():
                self._last = message
            case Found(gpu=gpu):
                self._answers[gpu.index] = gpu
            case ProbeRefused():
                self._refused = message.message
            case QuestionAnswered():
                self._answered = True
                # Otherwise a child that dies between two questions would accuse the GPU that it asked last.
                self._last = Asking(what="waiting")
                if self._child is not None:
                    self._child.expect()

    def _now(self, known: Gpu) -> Gpu:
        if known.index in self._faults:
            return msgspec.structs.replace(known, fault=self._faults[known.index])
        now = self._answers.get(known.index)
        if now is not None:
            now = used_by_others(now, os.getpid())
        # NVML counts in the order of the bus, so the index may belong to another GPU by now.
        if now is None or (now.uuid and now.uuid != known.uuid):
            return msgspec.structs.replace(known, fault=f"{known.label} has vanished from the driver's list")
        return msgspec.structs.replace(
            known,
            memory_used=now.memory_used,
            processes=now.processes,
            slices=now.slices,
            fault=now.fault,
        )


def _in_words(ended: Ended | None) -> str:
    return str(ended) if ended is not None else "is silent"


_MEANINGFUL_MEMORY = 64 << 20
"""Growth of memory below this is caused by the driver itself."""


def gpu_leftover(then: Gpu, now: Gpu, *, ours: Collection[int] | None = None) -> str:
    """Describe a process that holds a GPU and did not before, or the GPU's fault; empty if there is neither. Pure.

    Args:
        then: the GPU before its world started.
        now: the GPU after its world ended.
        ours: the only process ids that count, if other runs use the GPU, too.
    """
    if now.fault:
        return now.fault
    known = {process.pid for process in then.processes}
    new = [process for process in now.processes if process.pid not in known and process.computes]
    if ours is not None:
        new = [process for process in new if process.pid in ours]
    if new:
        names = ", ".join(f"{process.name or 'process'} (pid {process.pid})" for process in new)
        return f"{now.label} is still held by {names}"
    # Next to other runs, growth of memory says nothing about this one.
    if ours is not None:
        return ""
    grown = now.memory_used - then.memory_used
    if not now.processes and grown > _MEANINGFUL_MEMORY:
        return f"{now.label} has {grown >> 20} MiB more in use than before, by a process that cannot be seen"
    return ""
