"""Messages from the NVML probe, a child process, to its parent."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec

from disttest.host.devices.machine import Gpu


@dataclass_transform(frozen_default=True, kw_only_default=True)
class ProbeMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="says", tag=True):
    """Base of all messages."""


class Asking(ProbeMessage, tag="asking"):
    """A call into the driver begins. If no other message follows, this call hangs or has crashed."""

    what: str
    gpu: int | None = None


class Driver(ProbeMessage, tag="driver"):
    """NVML works. This message precedes all questions about GPUs."""

    gpus: int
    driver: str = ""
    cuda: str = ""
    nvml: str = ""


class Found(ProbeMessage, tag="found"):
    """One GPU, without its peers."""

    gpu: Gpu


class Link(ProbeMessage, tag="link"):
    """The connection between two GPUs."""

    first: int
    second: int
    nvlinks: int = 0
    path: str = ""


class ProbeRefused(ProbeMessage, tag="refused"):
    """NVML itself cannot be used."""

    code: int
    message: str


class QuestionAnswered(ProbeMessage, tag="answered"):
    """The answer to one question of a watch is complete. The child waits for the next one."""


class Done(ProbeMessage, tag="done"):
    """All questions are answered."""


AnyMessage = Asking | Driver | Found | Link | ProbeRefused | QuestionAnswered | Done
