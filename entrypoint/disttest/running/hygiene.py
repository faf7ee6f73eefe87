"""What a test may leave behind in a living rank: noticed, named, and put back before the next test.

State is read as facts, by facet (``environment`` -> ``FOO`` -> value), at three moments: before set-up, before the
call, and after tear-down. A fact that ends as it was when the call began was changed by set-up; while
fixtures of a wider scope are still alive it is theirs and stays. Every other difference is a leak.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # in every CPython; ``signal`` wraps it in look-ups of constants
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Values = Mapping[Any, Any]
"""Of one facet: name -> value."""
Facts = dict[str, Values]
"""Facet -> its values; a facet of a library that is not loaded is not there."""
_MISSING = object()
_MOST_NAMED = 50
_WATCHED_SIGNALS = tuple(
    signal.Signals(number)
    for number in signal.valid_signals()
    if number not in (signal.SIGKILL, signal.SIGSTOP) and number in set(signal.Signals)
)
_PYTEST_OWN = b"PYTEST_CURRENT_TEST"


class Facet(NamedTuple):
    """One kind of process-wide state. Read three times for each test, so reading is to be quick."""

    kind: str
    read: Callable[[], Values]
    restore: Callable[[Any, Any], bool]
    """Put one fact back (``_MISSING``: it was not there); False when that can not be done."""


class Cleanup(NamedTuple):
    """What the cleaning of a rank found."""

    leaks: tuple[str, ...]
    retire: bool
    """Something could not be put back: this process must not run another test."""


def read_facts() -> Facts:
    """All facts of this process."""
    return {facet.kind: facet.read() for facet in _facets()}


def with_own_groups(before: Facts) -> Facts:
    """The facts with the process groups as they are now: the default group has just been made for the test."""
    return {**before, _PROCESS_GROUP: _process_groups()}


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
        if facet.kind not in before:  # its library was loaded meanwhile: there is nothing to go back to
            continue
        was_pristine, was_at_call = pristine.get(facet.kind, {}), at_call.get(facet.kind, {})
        for name, now, then in _changes(facet.read(), before[facet.kind]):
            if facet.kind != _PROCESS_GROUP and _same(was_pristine.get(name, _MISSING), now):
                continue
            if shared_fixtures and _same(was_at_call.get(name, _MISSING), now):
                continue
            leaks.append(_describe(facet.kind, name, now, then))
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


def _changes(now: Values, before: Values) -> Iterator[tuple[Any, Any, Any]]:
    if now == before:  # nearly always
        return
    for name in [*now, *(name for name in before if name not in now)]:
        here, then = now.get(name, _MISSING), before.get(name, _MISSING)
        if not _same(here, then):
            yield name, here, then


def _same(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and left == right)


def _describe(kind: str, name: Any, now: Any, then: Any) -> str:
    what = f"{kind} {_text(name)}".strip()
    if kind in (_THREAD, _PROCESS_GROUP):
        return f"{what} ({'gone' if now is _MISSING else 'still there'})"
    if kind == _SIGNAL:
        now, then = (signal.Handlers(value) if isinstance(value, int) else value for value in (now, then))
    before, after = ("unset" if value is _MISSING else repr(_text(value))[:80] for value in (then, now))
    return f"{what}: {before} became {after}"


def _text(value: Any) -> Any:
    """A value as people write it: the environment's are bytes, signals have names."""
    if isinstance(value, bytes):
        return os.fsdecode(value)
    return value.name if isinstance(value, signal.Signals) else value


_THREAD = "thread"
_SIGNAL = "signal"
_PROCESS_GROUP = "process group"


def _facets() -> tuple[Facet, ...]:
    return _ALL if "torch" in sys.modules else _WITHOUT_TORCH


def _environment() -> Values:
    # As bytes, as it is kept: to decode each variable for each test would take longer than all the rest.
    values = dict(os.environ._data)  # type: ignore[attr-defined]  # noqa: SLF001, TID251
    values.pop(_PYTEST_OWN, None)
    return values


def _restore_environment(name: bytes, then: Any) -> bool:
    if then is _MISSING:
        os.environb.pop(name, None)
    else:
        os.environb[name] = then
    return True


def _directory() -> Values:
    try:
        return {"": os.getcwd()}  # noqa: PTH109  # three times for each test
    except FileNotFoundError:
        return {"": "(deleted)"}


def _restore_directory(_name: str, then: Any) -> bool:
    try:
        os.chdir(then)
    except OSError:
        return False
    return True


def _threads() -> Values:
    real = (t for t in threading.enumerate() if not isinstance(t, threading._DummyThread))  # noqa: SLF001
    return {t.name: t.ident for t in real if t is not threading.main_thread()}


def _signals() -> Values:
    return {signum: _signal.getsignal(signum) for signum in _WATCHED_SIGNALS}


def _tracing() -> Values:
    return {"function": sys.gettrace(), "profile": sys.getprofile()}


def _restore_tracing(name: str, then: Any) -> bool:
    (sys.settrace if name == "function" else sys.setprofile)(then)
    return True


def _restore_signal(signum: signal.Signals, then: Any) -> bool:
    if then is None:  # installed from C; Python can not put it back
        return False
    signal.signal(signum, then)
    return True


def _torch_flags() -> Values:
    import torch

    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "matmul precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "anomaly mode": torch.is_anomaly_enabled(),
    }


def _restore_torch_flag(name: str, then: Any) -> bool:
    import torch

    def cudnn(flags: tuple[bool, bool]) -> None:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags

    restorers: dict[str, Callable[[Any], object]] = {
        "default dtype": torch.set_default_dtype,
        "default device": torch.set_default_device,
        "grad mode": torch.set_grad_enabled,
        "deterministic algorithms": lambda on: torch.use_deterministic_algorithms(on[0], warn_only=on[1]),
        "cudnn": cudnn,
        "matmul precision": torch.set_float32_matmul_precision,
        "threads": torch.set_num_threads,
        "anomaly mode": torch.autograd.set_detect_anomaly,
    }
    restorers[name](then)
    return True


def _process_groups() -> Values:
    """Names of the living groups; the default group is named as such."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return {}
    from torch.distributed import distributed_c10d as c10d

    default = dist.group.WORLD
    return {
        "default" if group is default else name: id(group)
        for group, name in c10d._world.pg_names.items()  # noqa: SLF001  # no public list of groups exists
    }


def _restore_process_group(name: str, then: Any) -> bool:
    """Destroy a group that the test left; a default group that is gone or new can not be put back."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if then is not _MISSING or name == "default":
        return False
    for group, group_name in list(c10d._world.pg_names.items()):  # noqa: SLF001
        if group_name == name:
            dist.destroy_process_group(group)
    return True


_WITHOUT_TORCH = (
    Facet("environment", _environment, _restore_environment),
    Facet("directory", _directory, _restore_directory),
    Facet(_THREAD, _threads, lambda _name, _then: False),
    Facet(_SIGNAL, _signals, _restore_signal),
    Facet("tracing", _tracing, _restore_tracing),
)
_ALL = (
    *_WITHOUT_TORCH,
    Facet("torch", _torch_flags, _restore_torch_flag),
    Facet(_PROCESS_GROUP, _process_groups, _restore_process_group),
)


def _descriptors_are_spent() -> str:
    """Whether the next test would find no file descriptors left; they can not be told from those in use."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest = os.dup(2)
        os.close(lowest)
    except OSError:  # none is left, or the test has closed its output
        lowest = limit
    if lowest <= limit // 2:  # the first that is free: no more than so many can be a leak
        return ""
    try:
        count = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # names only, and quickly
    except OSError:  # not even one is left to look
        count = limit
    return f"file descriptors: {count} of {limit} are open" if count > limit // 2 else ""


def _reset_compiler() -> None:
    """Forget compiled code, if anything was compiled."""
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
