"""The child process that asks NVML, once or repeatedly, and its messages."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import dataclass_transform

import msgspec

from disttest.host.bounded import BoundedChild
from disttest.host.fork_hazard import forks_are_like_new
from disttest.plugins.gpus.machine import Gpu


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


_PROBE = "disttest.plugins.gpus.nvml"


def start_probe(
    *words: str,
    library: str,
    skip: Iterable[int],
    timeout_s: float,
    stall_s: float,
    on_line: Callable[[bytes], None],
) -> BoundedChild:
    """Start the child. It is a fork, which starts immediately, if no part of the driver is active in this process.

    Args:
        words: further arguments of :func:`disttest.plugins.gpus.nvml.main`.
        library: path of the NVML library; found by the dynamic linker if empty.
        skip: indices of GPUs to leave out.
        timeout_s: limit of the whole run.
        stall_s: limit of one answer of the driver.
        on_line: called with each line that the child writes.
    """
    arguments = [*words, *(["--library", library] if library else [])]
    for index in skip:
        arguments += ["--skip", str(index)]
    # 20 ms instead of the 100 to 140 ms of a new interpreter, two or three times in each run.
    fork = forks_are_like_new()
    if fork:
        importlib.import_module(_PROBE)  # imported once here instead of in each fork
    return BoundedChild(_PROBE, arguments, timeout_s=timeout_s, stall_s=stall_s, on_line=on_line, fork=fork)
