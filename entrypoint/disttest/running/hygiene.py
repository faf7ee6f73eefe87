"""What a test may leave behind in a living rank: noticed, named, and put back before the next test.

State is read as flat facts (``environment FOO`` -> value) at three moments: before set-up, before the
call, and after tear-down. A fact that ends as it was when the call began was changed by set-up; while
fixtures of a wider scope are still alive it is theirs and stays. Every other difference is a leak.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Facts = dict[str, Any]
_MISSING = object()
_MOST_NAMED = 50
_WATCHED_SIGNALS = tuple(
    signal.Signals(number)
    for number in signal.valid_signals()
    if number not in (signal.SIGKILL, signal.SIGSTOP) and number in set(signal.Signals)
)


class Facet(NamedTuple):
    """One kind of process-wide state."""

    read: Callable[[], Facts]
    restore: Callable[[str, Any], bool]
    """Put one fact back (``_MISSING``: it was not there); False when that can not be done."""


class Cleanup(NamedTuple):
    """What the cleaning of a rank found."""

    leaks: tuple[str, ...]
    retire: bool
    """Something could not be put back: this process must not run another test."""


def read_facts() -> Facts:
    """All facts of this process."""
    facts: Facts = {}
    for facet in _facets():
        facts.update(facet.read())
    return facts


def with_own_groups(before: Facts) -> Facts:
    """The facts with the process groups as they are now: the default group has just been made for the test."""
    others = {name: value for name, value in before.items() if _kind(name) != "process_group"}
    return {**others, **_process_groups()}


def clean_up(before: Facts, at_call: Facts, *, pristine: Facts, shared_fixtures: bool) -> Cleanup:
    """Put back what a test changed.

    Args:
        pristine: facts when the rank started; a fixture of a wider scope that is torn down returns to them.
        before: facts before the set-up of the test.
        at_call: facts when its call began.
        shared_fixtures: fixtures of a wider scope than the test are still set up.
    """
    leaks: list[str] = []
    retire = False
    for facet in _facets():
        for name, now, then in _changes(facet.read(), before):
            if _kind(name) != "process_group" and _same(pristine.get(name, _MISSING), now):
                continue
            if shared_fixtures and _same(at_call.get(name, _MISSING), now):
                continue
            leaks.append(_describe(name, now, then))
            retire |= not facet.restore(name, then)
    if spent := _descriptors_are_spent():
        leaks.append(spent)
        retire = True
    _reset_compiler()
    if len(leaks) > _MOST_NAMED:
        leaks[_MOST_NAMED:] = [f"{len(leaks) - _MOST_NAMED} more things, which are not listed"]
    return Cleanup(tuple(leaks), retire)


def reseed(seed: int) -> None:
    """Seed every random generator that is loaded, the same on all ranks."""
    import random

    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
    if torch := sys.modules.get("torch"):
        # A torch for the CPU would note each seed, with a stack, for accelerators that never come.
        has_accelerator = torch.accelerator.current_accelerator() is not None
        (torch if has_accelerator else torch.default_generator).manual_seed(seed)


def _changes(now: Facts, before: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    kinds = {_kind(name) for name in now}
    names = [*now, *(name for name in before if name not in now and _kind(name) in kinds)]
    pairs = ((name, now.get(name, _MISSING), before.get(name, _MISSING)) for name in names)
    return [(name, here, then) for name, here, then in pairs if not _same(here, then)]


def _kind(name: str) -> str:
    return name.split(" ", 1)[0]


def _same(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and left == right)


def _describe(name: str, now: Any, then: Any) -> str:
    if name.startswith(("thread ", "process_group ")):
        return f"{name.replace('_', ' ')} ({'gone' if now is _MISSING else 'still there'})"
    before, after = ("unset" if value is _MISSING else repr(value)[:80] for value in (then, now))
    return f"{name}: {before} became {after}"


def _facets() -> list[Facet]:
    facets = [
        Facet(_environment, _restore_environment),
        Facet(_directory, _restore_directory),
        Facet(_threads, lambda _name, _then: False),
        Facet(_signals, _restore_signal),
        Facet(_tracing, _restore_tracing),
    ]
    if "torch" in sys.modules:
        facets += [Facet(_torch_flags, _restore_torch_flag), Facet(_process_groups, _restore_process_group)]
    return facets


def _environment() -> Facts:
    return {f"environment {key}": value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}  # noqa: TID251


def _restore_environment(name: str, then: Any) -> bool:
    key = name.split(" ", 1)[1]
    if then is _MISSING:
        os.environ.pop(key, None)  # noqa: TID251
    else:
        os.environ[key] = then  # noqa: TID251
    return True


def _directory() -> Facts:
    try:
        return {"directory": str(Path.cwd())}
    except FileNotFoundError:
        return {"directory": "(deleted)"}


def _restore_directory(_name: str, then: Any) -> bool:
    try:
        os.chdir(then)
    except OSError:
        return False
    return True


def _threads() -> Facts:
    real = (t for t in threading.enumerate() if not isinstance(t, threading._DummyThread))  # noqa: SLF001
    return {f"thread {t.name}": t.ident for t in real if t is not threading.main_thread()}


def _signals() -> Facts:
    return {f"signal {signum.name}": signal.getsignal(signum) for signum in _WATCHED_SIGNALS}


def _tracing() -> Facts:
    return {"tracing function": sys.gettrace(), "tracing profile": sys.getprofile()}


def _restore_tracing(name: str, then: Any) -> bool:
    (sys.settrace if name.endswith("function") else sys.setprofile)(then)
    return True


def _restore_signal(name: str, then: Any) -> bool:
    if then is None:  # installed from C; Python can not put it back
        return False
    signal.signal(getattr(signal, name.split(" ", 1)[1]), then)
    return True


def _torch_flags() -> Facts:
    import torch

    return {
        "torch default dtype": torch.get_default_dtype(),
        "torch default device": torch.get_default_device(),
        "torch grad mode": torch.is_grad_enabled(),
        "torch deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "torch cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "torch matmul precision": torch.get_float32_matmul_precision(),
        "torch threads": torch.get_num_threads(),
        "torch anomaly mode": torch.is_anomaly_enabled(),
    }


def _restore_torch_flag(name: str, then: Any) -> bool:
    import torch

    def cudnn(flags: tuple[bool, bool]) -> None:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags

    restorers: dict[str, Callable[[Any], object]] = {
        "torch default dtype": torch.set_default_dtype,
        "torch default device": torch.set_default_device,
        "torch grad mode": torch.set_grad_enabled,
        "torch deterministic algorithms": lambda on: torch.use_deterministic_algorithms(
            on[0], warn_only=on[1]
        ),
        "torch cudnn": cudnn,
        "torch matmul precision": torch.set_float32_matmul_precision,
        "torch threads": torch.set_num_threads,
        "torch anomaly mode": torch.autograd.set_detect_anomaly,
    }
    restorers[name](then)
    return True


def _process_groups() -> Facts:
    """Names of the living groups; the default group is named as such."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return {"process_group (none)": True}
    from torch.distributed import distributed_c10d as c10d

    default = dist.group.WORLD
    return {
        f"process_group {'default' if group is default else name}": id(group)
        for group, name in c10d._world.pg_names.items()  # noqa: SLF001  # no public list of groups exists
    }


def _restore_process_group(name: str, then: Any) -> bool:
    """Destroy a group that the test left; a default group that is gone or new can not be put back."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if then is not _MISSING or name in ("process_group default", "process_group (none)"):
        return False
    for group, group_name in list(c10d._world.pg_names.items()):  # noqa: SLF001
        if f"process_group {group_name}" == name:
            dist.destroy_process_group(group)
    return True


def _descriptors_are_spent() -> str:
    """Whether the next test would find no file descriptors left; they can not be told from those in use."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        count = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # names only, and quickly
    except OSError:  # not even one is left to look
        count = limit
    return f"file descriptors: {count} of {limit} are open" if count > limit // 2 else ""


def _reset_compiler() -> None:
    """Forget compiled code, if anything was compiled."""
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
