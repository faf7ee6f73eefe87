"""How NVML is asked, once or again and again: the child, and whether it may be a fork of this process."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable

from disttest.host.bounded import BoundedChild
from disttest.host.fork_hazard import forks_are_like_new

_PROBE = "disttest.host.devices.nvml"


def start_probe(
    *words: str,
    library: str,
    skip: Iterable[int],
    timeout_s: float,
    stall_s: float,
    on_line: Callable[[bytes], None],
) -> BoundedChild:
    """Start the child; it is a fork, which is ready at once, where nothing of the driver has begun in this process.

    Args:
        words: further arguments of :func:`disttest.host.devices.nvml.main`.
        library: path of the NVML library; found by the dynamic linker if empty.
        skip: indices of GPUs that are not to be asked about.
        timeout_s: bound on the whole.
        stall_s: bound on one answer of the driver.
        on_line: called with each line that it speaks.
    """
    arguments = [*words, *(["--library", library] if library else [])]
    for index in skip:
        arguments += ["--skip", str(index)]
    fork = forks_are_like_new()
    if fork:
        importlib.import_module(_PROBE)  # once, and not in each fork
    return BoundedChild(_PROBE, arguments, timeout_s=timeout_s, stall_s=stall_s, on_line=on_line, fork=fork)
