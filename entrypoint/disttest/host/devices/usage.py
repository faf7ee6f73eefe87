"""Asks the driver again and again who holds the GPUs, beside other work: an answer costs a millisecond.

One child keeps NVML open for the whole run. When the driver hangs or crashes it, the GPU that it was asking
is broken, and a new child asks about the others.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable

import msgspec

from disttest.host.bounded import BoundedChild, Ended
from disttest.host.devices.machine import Gpu, used_by_others
from disttest.host.devices.probe import start_probe
from disttest.host.devices.probe_messages import AnyMessage, Asking, Found, ProbeRefused, QuestionAnswered
from disttest.limits import DRIVER_STALL_S

_decoder: msgspec.json.Decoder[AnyMessage] = msgspec.json.Decoder(AnyMessage)


class GpuWatch:
    """Ask; wait for one of the descriptors, or for a second; advance, until the answer is there."""

    def __init__(self, gpus: Iterable[Gpu], *, library: str = "", stall_s: float = DRIVER_STALL_S) -> None:
        """Prepare to watch; nothing is started before the first question.

        Args:
            gpus: the GPUs as they are known: what no longer answers is still named.
            library: path of the NVML library; found by the dynamic linker unless given.
            stall_s: bound on one answer of the driver.
        """
        self._known = {gpu.index: gpu for gpu in gpus}
        self._library = library
        self._stall_s = stall_s
        self._child: BoundedChild | None = None
        self._faults: dict[int, str] = {}
        """Of GPUs that are not asked about any more."""
        self._heard: dict[int, Gpu] = {}
        self._last = Asking(what="nvmlInit")
        self._asked = self._answered = False
        self._refused = ""

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process, which who looks for leftovers must not take for one."""
        return (self._child.pid,) if self._child is not None else ()

    def ask(self) -> bool:
        """Put the question; False while an earlier one is open, whose answer may be older than now."""
        if self._asked:
            return False
        self._asked, self._answered, self._refused = True, False, ""
        self._heard.clear()
        if self._child is None or self._child.ended is not None:
            self._child = self._start()
        self._child.send({}, stall_s=self._stall_s)
        return True

    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when there is something to do."""
        return self._child.descriptors() if self._child is not None and self._asked else ()

    def advance(self) -> tuple[Gpu, ...] | None:
        """The GPUs as they are, with their memory and processes and what is wrong with them; None: not yet."""
        if not self._asked or self._child is None:
            return None
        ended = self._child.advance()
        if not self._answered and ended is None:
            return None
        self._asked = False
        if self._answered:
            return tuple(map(self._now, self._known.values()))
        if not self._refused and self._last.gpu is not None:
            self._faults[self._last.gpu] = f"the NVML probe {ended} when asked about this GPU"
            self.ask()
            return None
        reason = self._refused or f"{self._last.what}: the NVML probe {_in_words(ended)}"
        return tuple(msgspec.structs.replace(gpu, fault=reason) for gpu in self._known.values())

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()

    def _start(self) -> BoundedChild:
        return start_probe(
            "--watch",
            library=self._library,
            skip=self._faults,
            timeout_s=math.inf,
            stall_s=self._stall_s,
            on_line=self._hear,
        )

    def _hear(self, line: bytes) -> None:
        try:
            message = _decoder.decode(line)
        except msgspec.DecodeError:
            return  # the driver's chatter
        match message:
            case Asking():
                self._last = message
            case Found(gpu=gpu):
                self._heard[gpu.index] = gpu
            case ProbeRefused():
                self._refused = message.message
            case QuestionAnswered():
                self._answered = True
                self._last = Asking(what="waiting")
                if self._child is not None:
                    self._child.expect()

    def _now(self, known: Gpu) -> Gpu:
        if known.index in self._faults:
            return msgspec.structs.replace(known, fault=self._faults[known.index])
        now = self._heard.get(known.index)
        if now is not None:
            now = used_by_others(now, os.getpid())
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
