"""What the NVML probe, a child process, tells its parent."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec

from disttest.host.devices.machine import Gpu


@dataclass_transform(frozen_default=True, kw_only_default=True)
class ProbeMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="says", tag=True):
    """Base of all messages."""


class Asking(ProbeMessage, tag="asking"):
    """A call into the driver begins. If nothing follows, this is the one that hangs or crashes."""

    what: str
    gpu: int | None = None


class Driver(ProbeMessage, tag="driver"):
    """NVML answers; sent before any GPU is asked."""

    gpus: int
    driver: str = ""
    cuda: str = ""
    nvml: str = ""


class Found(ProbeMessage, tag="found"):
    """One GPU, without its peers."""

    gpu: Gpu


class Link(ProbeMessage, tag="link"):
    """How two GPUs reach each other."""

    first: int
    second: int
    nvlinks: int = 0
    path: str = ""


class ProbeRefused(ProbeMessage, tag="refused"):
    """NVML itself cannot be used."""

    code: int
    message: str


class QuestionAnswered(ProbeMessage, tag="answered"):
    """One question of a watch has been answered; it waits for the next."""


class Done(ProbeMessage, tag="done"):
    """Everything has been asked."""


AnyMessage = Asking | Driver | Found | Link | ProbeRefused | QuestionAnswered | Done
