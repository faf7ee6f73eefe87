"""The only module that forks, signals and waits.

A child is held by its pidfd: the descriptor becomes readable when the child ends, signals sent through
it cannot hit a reused pid, and waiting on it never touches another child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import struct
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO, NoReturn

from disttest.clock import monotonic, sleep
from disttest.descriptors import new_streams, take_descriptors
from disttest.host.copies import is_copy, note_original
from disttest.host.proc import stat_of
from disttest.limits import KILL_S
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

    @property
    def returncode(self) -> int:
        """The same in the convention of ``subprocess`` and ``multiprocessing``: minus the signal's number."""
        return (self.code or 0) if self.signal is None else -self.signal


def exit_of_zombie(pid: int) -> Exit | None:
    """How a process ended that its parent has not waited for; None for one that lives, or that is gone."""
    try:
        state, *fields = stat_of(pid)
    except ProcessLookupError:
        return None
    if state != "Z":
        return None
    status = int(fields[-1])  # the 52nd field of all, as waitpid(2) gives it
    if os.WIFSIGNALED(status):
        return Exit(signal=os.WTERMSIG(status))
    return Exit(code=os.WEXITSTATUS(status))


class SignalLine:
    """A signal that arrives as something to read, with its sender, instead of interrupting; see signalfd(2).

    It is blocked in this process and in its children, until they unblock it.
    """

    _RECORD = 128
    """Bytes of a ``signalfd_siginfo``; the sender's pid is the fourth of its numbers."""

    def __init__(self, signum: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signum})
        mask = (ctypes.c_uint64 * 16)(1 << (signum - 1))  # as large as a sigset_t may be
        self._fd: int = _libc.signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "signalfd")

    def fileno(self) -> int:
        """Readable once the signal has come."""
        return self._fd

    def read(self) -> int:
        """The pid of the sender; 0 for the kernel, and where the sender is in another pid namespace."""
        return int(struct.unpack_from("=Iii I", os.read(self._fd, self._RECORD))[3])


class Child:
    """A living (or just ended) direct child."""

    def __init__(self, pid: int, *, pidfd: int | None = None) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid) if pidfd is None else pidfd
        self._exit: Exit | None = None

    def fileno(self) -> int:
        """The pidfd: readable once the child has ended."""
        return self._pidfd

    def poll(self) -> Exit | None:
        """How it ended, or None while it lives."""
        if self._exit is None:
            self._exit = self._reap()
        return self._exit

    @property
    def ended_badly(self) -> bool:
        """Whether it has ended, by a signal or with a code."""
        exit_ = self.poll()
        return exit_ is not None and exit_.code != 0

    def _reap(self) -> Exit | None:
        try:
            info = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:  # who killed all of our descendants has collected it, too
            return Exit(signal=signal.SIGKILL)
        if info is None:
            return None
        exited = info.si_code == os.CLD_EXITED
        return Exit(code=info.si_status) if exited else Exit(signal=info.si_status)

    def wait(self, timeout_s: float) -> Exit | None:
        """Wait for the end, but not longer than that."""
        if self.poll() is None:
            self.has_ended(within_s=timeout_s)
        return self.poll()

    def has_ended(self, *, within_s: float = 0.0) -> bool:
        """Whether it has ended, or does so within that time; it may still have to be waited for by its parent."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(max(0.0, within_s) * 1000))

    def signal(self, signum: int) -> None:
        """Send a signal; a child that has ended is left in peace."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, signum)

    def close(self) -> None:
        """Give the pidfd back."""
        os.close(self._pidfd)


class PipedChild(Child):
    """A child in a session of its own, with pipes of ours for its input and output; we never wait on one of them.

    Made by :func:`start_piped` or :func:`fork_piped`.
    """

    def __init__(
        self, pid: int, *, stdin: IO[bytes] | None, stdout: IO[bytes] | None, stderr: IO[bytes] | None = None
    ) -> None:
        super().__init__(pid)
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        for pipe in self._pipes():
            os.set_blocking(pipe.fileno(), False)

    def _pipes(self) -> list[IO[bytes]]:
        return [pipe for pipe in (self.stdin, self.stdout, self.stderr) if pipe is not None]

    def kill_session(self) -> None:
        """Kill it and what it started in its session, unless it has been waited for.

        Its number cannot be another's meanwhile.
        """
        if self._exit is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # noqa: TID251

    def close(self) -> None:
        """Give the pidfd and the pipes back."""
        super().close()
        for pipe in self._pipes():
            with contextlib.suppress(OSError):  # what was written last, and nobody reads
                pipe.close()


def start_piped(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    directory: str | None = None,
    errors: IO[bytes] | None = None,
) -> PipedChild:
    """Start a new program.

    Args:
        argv: its command line.
        environ: its environment, ours unless given.
        directory: where it runs, here unless given.
        errors: a file for its standard error, which is a pipe like the others otherwise.
    """
    process = subprocess.Popen(
        list(argv),
        env=environ,
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if errors is None else errors,
        start_new_session=True,
    )
    process.returncode = 0  # the pidfd waits for it from here on; Popen must not
    return PipedChild(process.pid, stdin=process.stdin, stdout=process.stdout, stderr=process.stderr)


def fork_piped(main: Callable[[], None], *, errors: IO[bytes]) -> PipedChild:
    """Fork; the child has no descriptors but its pipes, so that it keeps those of no other child open.

    Args:
        main: what the child does, see :func:`fork_child`.
        errors: a file for its standard error.
    """
    (its_input, stdin), (stdout, its_output) = os.pipe(), os.pipe()

    def inside() -> None:
        take_descriptors((its_input, its_output, errors.fileno()), (0, 1, 2))
        new_streams()
        main()

    child = fork_child(inside, new_session=True)
    child.close()
    os.close(its_input)
    os.close(its_output)
    return PipedChild(child.pid, stdin=os.fdopen(stdin, "wb", 0), stdout=os.fdopen(stdout, "rb", 0))


def fork_child(main: Callable[[], None], *, new_session: bool = False, new_group: bool = False) -> Child:
    """Fork; the child runs ``main`` and leaves by ``os._exit``, so that nothing of the parent runs twice.

    Args:
        main: returns for exit code 0; anything raised is printed and ends the child with code 70.
        new_session: make the child a session leader, out of reach of the terminal's signals.
        new_group: make it the leader of a process group, so that a signal to its group hits nobody else.
    """
    # What is buffered now would otherwise be written once by each of the two processes.
    flush_output()
    pid = _fork()
    if pid:
        return Child(pid)
    return _run_and_leave(main, new_session=new_session, new_group=new_group)


def fork_here() -> Child | None:
    """Fork; None in the child, a session leader which goes on from here and has to leave by itself."""
    flush_output()
    pid = _fork()
    if pid:
        return Child(pid)
    os.setsid()
    return None


def _fork() -> int:
    """Fork, whatever threads there are: which of them matter has been decided before (``fork_hazard``).

    From Python 3.12 on each is worth a warning, and where warnings are errors the fork is made and its parent raises.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()  # noqa: TID251
    if not pid:
        note_original()
    return pid


def leave_if_copy(code: int = 0) -> None:
    """End this process if it is a copy, without a flush: what is buffered is the parent's, which writes it too."""
    if is_copy():
        os._exit(code)


def _run_and_leave(main: Callable[[], None], *, new_session: bool, new_group: bool) -> NoReturn:
    code = INTERNAL_FAILURE
    try:
        if new_session:
            os.setsid()
        if new_group:
            os.setpgid(0, 0)
        main()
        code = 0
    except BaseException:  # noqa: BLE001  # the last line of a process: nothing may escape into the parent's stack
        traceback.print_exc()
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """End this process at once, after flushing; exit handlers belong to the parent."""
    flush_output()
    os._exit(code)


def flush_output() -> None:
    """Flush both streams, as far as they are such: a test may have put anything in their place."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def spawn_child(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    extra_env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    stdout: int | None = None,
    stderr: int | None = None,
    keep_stdin: bool = False,
    new_session: bool = False,
    new_group: bool = False,
) -> Child:
    """Start a new program in this environment and more.

    Args:
        argv: its command line.
        environ: its environment, ours unless given.
        extra_env: what its environment has beside that.
        pass_fds: descriptors that it inherits.
        stdout: a descriptor for what it prints, its errors too unless ``stderr`` is given; it reads nothing then.
        stderr: a descriptor for its errors.
        keep_stdin: let it read what we could read, although its output is taken.
        new_session: make it a session leader, out of reach of the terminal's signals.
        new_group: make it the leader of a process group, so that a signal to its group hits nobody else.
    """
    process = subprocess.Popen(
        list(argv),
        env={**(os.environ if environ is None else environ), **(extra_env or {})},  # noqa: TID251  # handed on
        stdin=None if stdout is None or keep_stdin else subprocess.DEVNULL,
        stdout=stdout,
        stderr=stdout if stderr is None else stderr,
        pass_fds=tuple(pass_fds),
        start_new_session=new_session,
        process_group=0 if new_group else None,
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


def umask_now() -> int:
    """What new files of this process are not allowed."""
    mask = os.umask(0o077)  # no call only reads it
    os.umask(mask)
    return mask


def send_signal(pid: int, signum: int) -> None:
    """Signal a process that is not held by a :class:`Child`; one that is gone is fine."""
    try:
        os.kill(pid, signum)  # noqa: TID251
    except ProcessLookupError:
        return


def end_all(
    children: Sequence[Child], *, term_grace_s: float = 0.0, kill_limit_s: float = KILL_S
) -> tuple[Child, ...]:
    """The kill ladder: TERM to all, a grace for all together, KILL to the rest; return what survived even that."""
    for child in children:
        child.signal(signal.SIGTERM)
    _wait_all(children, term_grace_s)
    for child in children:
        child.signal(signal.SIGKILL)
    _wait_all(children, kill_limit_s)
    return tuple(child for child in children if child.poll() is None)


def kill_overdue(living: Callable[[], Collection[int]], *, orderly_s: float, poll_s: float) -> None:
    """Wait until processes that need not be children have ended, and kill those that have not after a while.

    Args:
        living: pids of those that have not ended yet.
        orderly_s: how long they have to end by themselves.
        poll_s: how often they are looked at.
    """
    kill_at_s = monotonic() + orderly_s
    while (left := living()) and monotonic() < kill_at_s + KILL_S:
        for pid in left if monotonic() >= kill_at_s else ():
            send_signal(pid, signal.SIGKILL)
        sleep(poll_s)


def _wait_all(children: Sequence[Child], limit_s: float) -> None:
    deadline = monotonic() + limit_s
    for child in children:
        child.wait(deadline - monotonic())


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; the bare number for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
