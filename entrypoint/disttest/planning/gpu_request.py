"""Parsing of a request for GPUs: all, a number of them, or named ones. Pure."""

from __future__ import annotations

import re

from disttest.errors import UsageError
from disttest.model import Frozen

_NAME = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")


class GpuShare(Frozen):
    """A request for GPUs. ``disttest launch --gpus`` accepts the same words."""

    required: bool = False
    """Whether a machine without GPUs is an error. Otherwise the run uses the CPU."""
    none: bool = False
    """Whether to run on the CPU even if the machine has GPUs."""
    count: int = 0
    """Number of GPUs; 0 for all that are named, or that the machine has."""
    names: tuple[str, ...] = ()
    """Indices and UUIDs, or prefixes of UUIDs; empty for any."""


def parse_share(text: str) -> GpuShare:
    """Parse ``auto``, ``all``, ``none``, ``2``, ``GPU-8f2e,GPU-91aa`` or ``device=0,3``.

    Raises:
        UsageError: it is none of these.
    """
    text = text.strip()
    match text.lower():
        case "auto":
            return GpuShare()
        case "all":
            return GpuShare(required=True)
        case "none":
            return GpuShare(none=True)
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text):
        return GpuShare(required=True, count=int(text))
    names = tuple(name.strip() for name in text.removeprefix("device=").split(","))
    if not all(map(_NAME.fullmatch, names)) or text.isdigit():
        raise UsageError(f"{text!r} is not auto, all, none, a count from 1, device=INDEX or UUIDs of GPUs")
    return GpuShare(required=True, names=names)
