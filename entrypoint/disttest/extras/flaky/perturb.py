"""The perturbations of ``--perturb``, and those that apply to the whole process that worlds are forked from."""

from __future__ import annotations

import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from disttest.errors import UsageError
from disttest.model import Frozen, TestCase, WorldKind
from disttest.options.values import COUNT, SECONDS, Type, parse_bytes

_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass\n"
"""Program of a process that competes for a processor. It ends with its parent, however that ends."""


class Perturbed(Frozen):
    """The perturbations of a run."""

    delay: float = 0.0
    """Longest delay of the start or the return of each collective of one rank, in seconds."""
    threads: int = 0
    """Compute threads of each test process; 0 leaves them as they are."""
    cpu: int = 0
    """Busy processes on the one processor that all tests share; 0 leaves the tests all processors."""
    memory: int = 0
    """Limit of the private memory of each process, in bytes; 0 for none."""
    crowd: bool = False
    """Whether isolated tests run at the same time, one in each slot, instead of one after another."""


def _no_strength(text: str) -> bool:
    if text:
        raise UsageError(f"crowd has no strength, got {text!r}; give the number of slots in --slots")
    return True


_KINDS: dict[str, Callable[[str], float]] = {
    "delay": SECONDS.parse,
    "threads": COUNT.parse,
    "cpu": COUNT.parse,
    "memory": parse_bytes,
    "crowd": _no_strength,
}


def parse_perturbed(text: str) -> Perturbed:
    """Parse a list such as ``delay:0.2,cpu:4``.

    Raises:
        UsageError: a perturbation or its strength is not valid.
    """
    values: dict[str, float] = {}
    for word in text.split(","):
        name, _, strength = word.strip().partition(":")
        if name not in _KINDS:
            raise UsageError(
                f"{name!r} is not a perturbation; give NAME:STRENGTH, with one of the names {', '.join(_KINDS)}"
            )
        values[name] = _KINDS[name](strength)
    return Perturbed(**values)  # type: ignore[arg-type]  # each parser returns the type of its field


PERTURBED = Type(form="NAME:STRENGTH[,…]", parse=parse_perturbed)


def without_turns(test: TestCase, *, alone: bool) -> TestCase:
    """Return an isolated test as one that other tests may run next to, unless the user wants it to run alone."""
    is_isolated = test.kind is WorldKind.PROCESS
    return msgspec.structs.replace(test, exclusive=alone) if is_isolated else test


@contextmanager
def perturbing(perturbed: Perturbed) -> Iterator[None]:
    """Take processor time and memory from this process and its later children while the context lasts."""
    # Imported late: the options import this module, and the command starts without `subprocess`.
    from disttest.host.process import end_all, spawn_child

    processors, limits = os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_DATA)
    busy = []
    try:
        if perturbed.cpu:
            # Not always the same one: other runs on this machine may be perturbed as well.
            # Of this thread, which forks the worlds: processes inherit the affinity of the thread that forks
            # them.
            os.sched_setaffinity(0, {random.choice(sorted(processors))})  # noqa: S311
            # A session each: Linux shares a processor equally among sessions (sched_autogroup_enabled), not processes.
            # Worlds are sessions. Against eight busy processes of one session, a test kept half of the processor.
            # -S, since the program needs no packages, and `site` would read files first.
            argv = [sys.executable, "-S", "-c", _BUSY]
            busy = [spawn_child(argv, new_session=True) for _ in range(perturbed.cpu)]
        if perturbed.memory:
            # RLIMIT_DATA counts private writable memory (Linux 4.7 and later). RLIMIT_AS would also count
            # libraries, and addresses that are only reserved. The soft limit only: a lowered hard limit could
            # not be raised again.
            resource.setrlimit(resource.RLIMIT_DATA, (perturbed.memory, limits[1]))
        yield
    finally:
        os.sched_setaffinity(0, processors)
        resource.setrlimit(resource.RLIMIT_DATA, limits)
        end_all(busy)
