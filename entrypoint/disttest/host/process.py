"""The only module that forks, signals and waits.

A child is held by its pidfd: the descriptor becomes readable when the child ends, signals sent through
it can not hit a reused pid, and waiting on it never touches another child.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import psutil

from disttest.model import Frozen

INTERNAL_FAILURE = 70
"""Exit code of a child of ours whose own code raised (EX_SOFTWARE of sysexits.h)."""

# Numbers of <linux/prctl.h>; the standard library has no binding.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)

# A real-time signal, because tests do use SIGUSR1 and SIGUSR2; glibc keeps the first few for itself.
STACKS_SIGNAL = int(signal.SIGRTMAX) - 3


class Exit(Frozen):
    """How a process ended: exactly one of the two is set."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        return signal_name(self.signal)


class Child:
    """A living (or just ended) direct child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._exit: Exit | None = None

    def fileno(self) -> int:
        """The pidfd: readable once the child has ended."""
        return self._pidfd

    def poll(self) -> Exit | None:
        """How it ended, or None while it lives."""
        if self._exit is None:
            info = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
            if info is not None:
                exited = info.si_code == os.CLD_EXITED
                self._exit = Exit(code=info.si_status) if exited else Exit(signal=info.si_status)
        return self._exit

    def wait(self, timeout_s: float) -> Exit | None:
        """Wait for the end, but not longer than that."""
        if self.poll() is None:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            poller.poll(max(0.0, timeout_s) * 1000)
        return self.poll()

    def signal(self, signum: int) -> None:
        """Send a signal; a child that has ended is left in peace."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, signum)

    def close(self) -> None:
        """Give the pidfd back."""
        os.close(self._pidfd)


def fork_child(main: Callable[[], None], *, new_session: bool = False) -> Child:
    """Fork; the child runs ``main`` and leaves by ``os._exit``, so that nothing of the parent runs twice.

    Args:
        main: returns for exit code 0; anything raised is printed and ends the child with code 70.
        new_session: make the child a session leader, out of reach of the terminal's signals.
    """
    # What is buffered now would otherwise be written once by each of the two processes.
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()  # noqa: TID251
    if pid:
        return Child(pid)
    return _run_and_leave(main, new_session=new_session)


def _run_and_leave(main: Callable[[], None], *, new_session: bool) -> NoReturn:
    code = INTERNAL_FAILURE
    try:
        if new_session:
            os.setsid()
        main()
        code = 0
    except BaseException:  # noqa: BLE001  # the last line of a process: nothing may escape into the parent's stack
        traceback.print_exc()
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """End this process at once, after flushing; exit handlers belong to the parent."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def spawn_child(
    argv: Sequence[str],
    *,
    extra_env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    stdout: int | None = None,
    stderr: int | None = None,
    keep_stdin: bool = False,
    new_session: bool = False,
) -> Child:
    """Start a new program in this environment and more.

    Args:
        argv: its command line.
        extra_env: what its environment has beside ours.
        pass_fds: descriptors that it inherits.
        stdout: a descriptor for what it prints, its errors too unless ``stderr`` is given; it reads nothing then.
        stderr: a descriptor for its errors.
        keep_stdin: let it read what we could read, although its output is taken.
        new_session: make it a session leader, out of reach of the terminal's signals.
    """
    process = subprocess.Popen(
        list(argv),
        env={**os.environ, **(extra_env or {})},  # noqa: TID251  # handed on as it is
        stdin=None if stdout is None or keep_stdin else subprocess.DEVNULL,
        stdout=stdout,
        stderr=stdout if stderr is None else stderr,
        pass_fds=tuple(pass_fds),
        start_new_session=new_session,
    )
    child = Child(process.pid)
    process.returncode = 0  # the pidfd waits for it from here on; Popen must not
    return child


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the call took effect
        leave(128 + signal.SIGKILL)


def adopt_orphans(*, enabled: bool = True) -> None:
    """Make this process the one that orphaned descendants are handed to, instead of init."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(enabled))


def children_of(pid: int | None = None) -> set[int]:
    """Pids of all living descendants (of this process by default), zombies excluded."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {process.pid for process in found if _is_alive(process)}


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def age_of(pid: int) -> float:
    """Seconds since a process was started, to a hundredth.

    Raises:
        ProcessLookupError: it is gone.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError as error:
        raise ProcessLookupError(pid) from error
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # the 22nd field of all, on the boot clock
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def forked_children() -> set[int]:
    """Pids of the direct children of this process, zombies included; cheap, no look at other processes."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            with (task / "children").open() as file:
                found.update(map(int, file.read().split()))
        except FileNotFoundError:
            continue
    return found


def reap(pids: Iterable[int]) -> None:
    """Collect those of the given processes that are our children and have ended."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def kill_descendants(
    *, spare: Iterable[int] = (), spare_trees: Sequence[int] = (), limit_s: float = 2.0
) -> tuple[int, ...]:
    """Kill every descendant of this process, new sessions and orphans included; return the survivors.

    Repeats until none is left, because a process may fork between the look and the kill. The caller
    must be the adopter of orphans (:func:`adopt_orphans`), else double-forked ones are out of sight.

    Args:
        spare: processes that live on.
        spare_trees: processes that live on with all that they start.
        limit_s: how long to try.
    """
    spared = set(spare)
    deadline = time.monotonic() + limit_s
    pause_s = 0.001
    while True:
        found = children_of() - spared
        # Looked at after the others: what a spared process forks meanwhile is spared too.
        for root in spare_trees:
            found -= {root} | children_of(root)
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        reap(_zombies(spared.union(spare_trees)))
        if not found or time.monotonic() > deadline:
            return tuple(sorted(found))
        time.sleep(pause_s)
        pause_s = min(0.05, pause_s * 2)


def _zombies(spared: set[int]) -> set[int]:
    try:
        children = psutil.Process().children()
    except psutil.NoSuchProcess:
        return set()
    return {child.pid for child in children if child.pid not in spared and not _is_alive(child)}


def send_signal(pid: int, signum: int) -> None:
    """Signal a process that is not held by a :class:`Child`; one that is gone is fine."""
    try:
        os.kill(pid, signum)  # noqa: TID251
    except ProcessLookupError:
        return


def end_all(
    children: Sequence[Child], *, term_grace_s: float, kill_limit_s: float = 2.0
) -> tuple[Child, ...]:
    """The kill ladder: TERM to all, a grace for all together, KILL to the rest; return what survived even that."""
    for child in children:
        child.signal(signal.SIGTERM)
    _wait_all(children, term_grace_s)
    for child in children:
        child.signal(signal.SIGKILL)
    _wait_all(children, kill_limit_s)
    return tuple(child for child in children if child.poll() is None)


def _wait_all(children: Sequence[Child], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    for child in children:
        child.wait(deadline - time.monotonic())


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; the bare number for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def fork_hazard() -> str | None:
    """Why forking this process would be unsafe, in words; None when it is safe."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is already initialised"
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads > 1:
        import threading

        names = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
        named = f" ({', '.join(names)})" if names else ""
        return f"{threads - 1} thread(s) besides the main one{named}"
    return None
