"""State that the kernel keeps for the process."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # in every CPython; ``signal`` wraps it in look-ups of constants
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any

from disttest.host.process import umask_now
from disttest.runtime.rank.facet import Facet, Setting, Values, change, settings

# Real-time signals have no names, except the first and the last. disttest asks ranks for stacks by one of
# them.
_WATCHED_SIGNALS = tuple(
    signal.Signals(number)
    for number in signal.valid_signals()
    if number not in (signal.SIGKILL, signal.SIGSTOP) and number in set(signal.Signals)
)
_LIMITS = sorted(
    name
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # another name
)


def _directory() -> Values:
    try:
        return {"": os.getcwd()}  # noqa: PTH109  # for each test
    except FileNotFoundError:
        # The test has removed the folder that it is in.
        return {"": "(deleted)"}


def _restore_directory(_name: str, then: Any) -> bool:
    try:
        os.chdir(then)
    except OSError:
        return False
    return True


def _signals() -> Values:
    handlers = {signum: _signal.getsignal(signum) for signum in _WATCHED_SIGNALS}
    # A DataLoader with workers sets it once for its process.
    if getattr(handlers[signal.SIGCHLD], "__module__", "") == "torch.utils.data._utils.signal_handling":
        handlers[signal.SIGCHLD] = _signal.SIG_DFL
    return handlers


def _restore_signal(signum: signal.Signals, then: Any) -> bool:
    # The handler was installed from C; Python cannot restore it.
    if then is None:
        return False
    signal.signal(signum, then)
    return True


def _describe_signal(what: str, now: Any, then: Any) -> str:
    now, then = (signal.Handlers(value) if isinstance(value, int) else value for value in (now, then))
    return change(what, now, then)


def _timer(which: int) -> Setting:
    def is_running() -> bool:
        return any(_signal.getitimer(which))

    def put(running: bool) -> None:
        if running:
            # A timer counts on, so the value at the start of the test is not its value now.
            raise OSError("what was left of it is not known")
        signal.setitimer(which, 0)

    names = {signal.ITIMER_REAL: "real time", signal.ITIMER_VIRTUAL: "processor time"}
    return Setting(names.get(which, "profiling"), is_running, put)


def _limit(name: str) -> Setting:
    number = getattr(resource, name)
    return Setting(name, lambda: resource.getrlimit(number), lambda then: resource.setrlimit(number, then))


def _wakeup_descriptor() -> int:
    # Python has no way to read the descriptor without replacing it.
    fd = signal.set_wakeup_fd(-1)
    if fd != -1:
        signal.set_wakeup_fd(fd)
    return fd


def _ids(
    get: Callable[[], Any], put: Callable[..., Any]
) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return get, lambda then: put(*then)


FACETS = (
    Facet("directory", _directory, _restore_directory),
    Facet("signal", _signals, _restore_signal, _describe_signal),
    settings("timer", *map(_timer, (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF))),
    settings("resource limit", *map(_limit, _LIMITS)),
    settings(
        "process",
        Setting("user ids", *_ids(os.getresuid, os.setresuid)),
        Setting("group ids", *_ids(os.getresgid, os.setresgid)),
        Setting("umask", umask_now, os.umask),
        Setting("affinity", lambda: os.sched_getaffinity(0), lambda then: os.sched_setaffinity(0, then)),
        Setting(
            "nice",
            lambda: os.getpriority(os.PRIO_PROCESS, 0),
            lambda then: os.setpriority(os.PRIO_PROCESS, 0, then),
        ),
        Setting(
            "blocked signals",
            lambda: _signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            lambda then: signal.pthread_sigmask(signal.SIG_SETMASK, then),
        ),
        Setting("signal wake-up descriptor", _wakeup_descriptor, signal.set_wakeup_fd),
        Setting(
            "time zone", lambda: time.tzname, lambda _: time.tzset()
        ),  # of the environment, which is put back first
    ),
)
