"""The only module that forks, signals and waits.

A child is held by its pidfd: the descriptor becomes readable when the child ends, signals sent through it cannot
reach a reused pid, and waiting on it never affects another child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import IO, NoReturn

from disttest.clock import monotonic, sleep
from disttest.descriptors import new_streams, take_descriptors
from disttest.host.copies import is_copy, note_original
from disttest.host.event_loop import wait_any
from disttest.host.proc import stat_of
from disttest.limits import KILL_S
from disttest.model import Frozen

INTERNAL_FAILURE = 70
"""Exit code of a disttest child whose own code raised (EX_SOFTWARE of sysexits.h)."""

# Constants of <linux/prctl.h>; the standard library has no binding.
# https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)

# A real-time signal, because tests use SIGUSR1 and SIGUSR2. glibc reserves the first few.
STACKS_SIGNAL = int(signal.SIGRTMAX) - 3


class Exit(Frozen):
    """The end of a process. Exactly one of the two fields is set."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        return signal_name(self.signal)

    @property
    def returncode(self) -> int:
        """The exit in the convention of ``subprocess`` and ``multiprocessing``: negative for a signal."""
        return (self.code or 0) if self.signal is None else -self.signal


def exit_of_zombie(pid: int) -> Exit | None:
    """Return how a process ended that its parent has not waited for; None if it lives or is gone."""
    try:
        state, *fields = stat_of(pid)
    except ProcessLookupError:
        return None
    if state != "Z":
        return None
    # The kernel shows it to processes that may trace this one; others read 0.
    status = int(fields[-1])  # field 52 in proc(5), in the form of waitpid(2)
    if os.WIFSIGNALED(status):
        return Exit(signal=os.WTERMSIG(status))
    return Exit(code=os.WEXITSTATUS(status))


class SignalLine:
    """A signal that arrives as readable data with its sender instead of an interruption; see signalfd(2).

    It is blocked in this process and in its children, until they unblock it.
    """

    _RECORD = 128
    """Size of a ``signalfd_siginfo`` in bytes. The sender's pid is the fourth of its numbers."""

    def __init__(self, signum: int) -> None:
        # Otherwise the signal would have its default action and never reach the descriptor.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signum})
        mask = (ctypes.c_uint64 * 16)(1 << (signum - 1))  # the largest size of a sigset_t
        self._fd: int = _libc.signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "signalfd")

    def fileno(self) -> int:
        """Return the descriptor that is readable once the signal has arrived."""
        return self._fd

    def read(self) -> int:
        """Return the pid of the sender; 0 for the kernel and for senders in another pid namespace."""
        # A record begins with ssi_signo, ssi_errno, ssi_code and ssi_pid, of 32 bits each.
        return int(struct.unpack_from("=Iii I", os.read(self._fd, self._RECORD))[3])


class Child:
    """A direct child that is running or has just ended."""

    def __init__(self, pid: int, *, pidfd: int | None = None) -> None:
        self.pid = pid
        # The pid cannot belong to another process yet: the kernel keeps it until its parent, this process,
        # has waited for it.
        self._pidfd = os.pidfd_open(pid) if pidfd is None else pidfd
        self._exit: Exit | None = None

    def fileno(self) -> int:
        """Return the pidfd, which is readable once the child has ended."""
        return self._pidfd

    def poll(self) -> Exit | None:
        """Return how it ended, or None while it runs."""
        if self._exit is None:
            self._exit = self._reap()
        return self._exit

    @property
    def ended_badly(self) -> bool:
        """Whether it has ended by a signal or with a nonzero code."""
        exit_ = self.poll()
        return exit_ is not None and exit_.code != 0

    def _reap(self) -> Exit | None:
        try:
            info = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        # Code that killed all descendants of this process has waited for the child, too.
        except ChildProcessError:
            return Exit(signal=signal.SIGKILL)
        # waitid with WNOHANG reports a child that still runs by None, and a missing child by ECHILD.
        if info is None:
            return None
        exited = info.si_code == os.CLD_EXITED
        return Exit(code=info.si_status) if exited else Exit(signal=info.si_status)

    def wait(self, timeout_s: float) -> Exit | None:
        """Wait for the end within a limit; return how it ended, or None."""
        wait_all([self], timeout_s)
        return self.poll()

    def has_ended(self, *, within_s: float = 0.0) -> bool:
        """Return whether it ends within a time. Its parent may still have to wait for it."""
        return bool(wait_any(self._pidfd, timeout_s=within_s))

    def signal(self, signum: int) -> None:
        """Send a signal; do nothing if the child has ended."""
        if self.poll() is None:
            # A child that ends after the look is a zombie, which takes signals without an error.
            signal.pidfd_send_signal(self._pidfd, signum)

    def close(self) -> None:
        """Close the pidfd."""
        os.close(self._pidfd)


class PipedChild(Child):
    """A child in a new session with pipes for its input and output. No read or write on them blocks.

    Create it with :func:`start_piped` or :func:`fork_piped`.
    """

    def __init__(
        self, pid: int, *, stdin: IO[bytes] | None, stdout: IO[bytes] | None, stderr: IO[bytes] | None = None
    ) -> None:
        super().__init__(pid)
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        for pipe in self._pipes():
            # A child that stops reading, or whose grandchild holds the pipe, must not block the process that
            # supervises it.
            os.set_blocking(pipe.fileno(), False)

    def _pipes(self) -> list[IO[bytes]]:
        return [pipe for pipe in (self.stdin, self.stdout, self.stderr) if pipe is not None]

    def kill_session(self) -> None:
        """Kill it and the processes of its session, unless it has been waited for."""
        # Until then its pid cannot be reused.
        if self._exit is None:
            # PermissionError: all that is left of the group runs as another user.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # noqa: TID251

    def close(self) -> None:
        """Close the pidfd and the pipes."""
        super().close()
        for pipe in self._pipes():
            with contextlib.suppress(OSError):  # the last data, which is never read
                pipe.close()


def start_piped(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    directory: str | None = None,
    errors: IO[bytes] | None = None,
) -> PipedChild:
    """Start a new program with pipes.

    Args:
        argv: its command line.
        environ: its environment; that of this process unless given.
        directory: its working directory; that of this process unless given.
        errors: a file for its standard error; a pipe unless given.
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
    process.returncode = 0  # only the pidfd waits for it; Popen must not
    return PipedChild(process.pid, stdin=process.stdin, stdout=process.stdout, stderr=process.stderr)


def fork_piped(main: Callable[[], None], *, errors: IO[bytes]) -> PipedChild:
    """Fork a child that has no descriptors except its pipes, so that it keeps none of another child open.

    Args:
        main: main function of the child, see :func:`fork_child`.
        errors: a file for its standard error.
    """
    (its_input, stdin), (stdout, its_output) = os.pipe(), os.pipe()

    # take_descriptors closes everything else: a pipe that another child inherited would never reach its end.
    def inside() -> None:
        take_descriptors((its_input, its_output, errors.fileno()), (0, 1, 2))
        new_streams()
        main()

    child = fork_child(inside, new_session=True)
    # `PipedChild` opens a pidfd itself.
    child.close()
    # The child has its copies. With one left here, a read would not end when the child ends.
    os.close(its_input)
    os.close(its_output)
    return PipedChild(child.pid, stdin=os.fdopen(stdin, "wb", 0), stdout=os.fdopen(stdout, "rb", 0))


def fork_child(main: Callable[[], None], *, new_session: bool = False, new_group: bool = False) -> Child:
    """Fork; the child runs ``main`` and leaves by ``os._exit``, so that exit handlers of the parent do not run twice.

    Args:
        main: main function; a return means exit code 0. An exception is printed and ends the child with code 70.
        new_session: make the child a session leader, out of reach of the terminal's signals.
        new_group: make it the leader of a process group, so that a signal to its group reaches no other process.
    """
    # Buffered text would otherwise be written once by each of the two processes.
    flush_output()
    pid = _fork()
    if pid:
        return Child(pid)
    return _run_and_leave(main, new_session=new_session, new_group=new_group)


def fork_here() -> Child | None:
    """Fork; return None in the child, a session leader that continues from here and must exit explicitly."""
    flush_output()
    pid = _fork()
    if pid:
        return Child(pid)
    os.setsid()
    return None


def _fork() -> int:
    """Fork regardless of other threads. ``fork_hazard`` has decided before whether any of them matters."""
    # Python 3.12 and later warn about each (https://github.com/python/cpython/issues/100228). If warnings are errors,
    # the fork is made and then its parent raises.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()  # noqa: TID251
    if not pid:
        note_original()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # see awaitable_children
    return pid


def outlive(line: int) -> None:
    """In a child process, wait until the process at the other end of a pipe has ended, and hold nothing of it meanwhile.

    The signals that end the other process are ignored. The standard streams and all other descriptors are closed: a reader of
    the other process's output must not wait for this one.

    Args:
        line: the child's end of the pipe.
    """
    # The terminal sends SIGINT and SIGHUP to the whole foreground group, this process included.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    # Two ranges, because the line itself must stay open.
    os.closerange(3, line)
    os.closerange(line + 1, os.sysconf("SC_OPEN_MAX"))
    # This process has inherited a copy of the other end, too. It is closed by now; with it open, the read
    # would never return.
    os.read(line, 1)  # the kernel closes the other end with its process


@contextlib.contextmanager
def awaitable_children() -> Iterator[None]:
    """Give SIGCHLD its default action for a while.

    The kernel throws the exits of children away where the signal is ignored, which programs inherit, and a handler of a
    conftest may wait for every child: a rank that crashed would count as killed.
    """
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        if before is not None:  # a handler of a library in C
            signal.signal(signal.SIGCHLD, before)


def leave_if_copy(code: int = 0) -> None:
    """End this process if it is a copy, without a flush: buffered text belongs to the parent, which writes it, too."""
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
    # last frame of this process: nothing may escape into the parent's stack
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """Flush the output and end this process immediately. Exit handlers belong to the parent."""
    flush_output()
    os._exit(code)


def flush_output() -> None:
    """Flush both standard streams. A test may have replaced them with anything."""
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
    folder: os.PathLike[str] | None = None,
) -> Child:
    """Start a new program.

    Args:
        argv: its command line.
        environ: its environment; that of this process unless given.
        extra_env: variables added to its environment.
        pass_fds: descriptors that it inherits.
        stdout: a descriptor for its output, also for its errors unless ``stderr`` is given. Its input is empty then.
        stderr: a descriptor for its errors.
        keep_stdin: let it read this process's standard input although its output is redirected.
        new_session: make it a session leader, out of reach of the terminal's signals.
        new_group: make it the leader of a process group, so that a signal to its group reaches no other process.
        folder: its working directory; that of this process unless given.
    """
    process = subprocess.Popen(
        list(argv),
        # passed on
        env={**(os.environ if environ is None else environ), **(extra_env or {})},  # noqa: TID251
        stdin=None if stdout is None or keep_stdin else subprocess.DEVNULL,
        stdout=stdout,
        stderr=stdout if stderr is None else stderr,
        pass_fds=tuple(pass_fds),
        start_new_session=new_session,
        process_group=0 if new_group else None,
        cwd=folder,
    )
    child = Child(process.pid)
    process.returncode = 0  # only the pidfd waits for it; Popen must not
    return child


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    # The parent is the thread that forked, which may end before its process:
    # https://github.com/containers/bubblewrap/issues/692
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before the call took effect
        leave(128 + signal.SIGKILL)


def adopt_orphans(*, enabled: bool = True) -> None:
    """Make this process adopt orphaned descendants, instead of init."""
    # A fork does not inherit this (PR_SET_CHILD_SUBREAPER(2const)), so each process that adopts calls it
    # again.
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(enabled))


def umask_now() -> int:
    """Return the permissions that new files of this process do not get."""
    # In between, a file of another thread becomes too private, and never too open.
    mask = os.umask(0o077)  # no call reads it without setting it
    os.umask(mask)
    return mask


def send_signal(pid: int, signum: int) -> None:
    """Signal a process that is not held by a :class:`Child`; do nothing if it has ended."""
    try:
        os.kill(pid, signum)  # noqa: TID251
    except ProcessLookupError:
        return


def end_all(
    children: Sequence[Child], *, term_grace_s: float = 0.0, kill_limit_s: float = KILL_S
) -> tuple[Child, ...]:
    """End all children: TERM to all, a common grace period, then KILL; return the survivors."""
    for child in children:
        child.signal(signal.SIGTERM)
    wait_all(children, term_grace_s)
    for child in children:
        child.signal(signal.SIGKILL)
    wait_all(children, kill_limit_s)
    return tuple(child for child in children if child.poll() is None)


def kill_overdue(living: Callable[[], Collection[int]], *, orderly_s: float, poll_s: float) -> None:
    """Wait for processes that need not be children; kill those that have not ended after a grace period.

    Args:
        living: returns the pids of those that have not ended.
        orderly_s: grace period, in seconds.
        poll_s: polling interval, in seconds.
    """
    kill_at_s = monotonic() + orderly_s
    # A process that is stuck in the kernel survives SIGKILL; the wait for it has an end.
    while (left := living()) and monotonic() < kill_at_s + KILL_S:
        for pid in left if monotonic() >= kill_at_s else ():
            send_signal(pid, signal.SIGKILL)
        sleep(poll_s)


def wait_all(children: Iterable[Child], limit_s: float) -> None:
    """Wait for the ends of all children within a common limit."""
    until_s = monotonic() + limit_s
    for child in children:
        if child.poll() is None:
            # One after another is enough: a child that has ended meanwhile is ready immediately.
            wait_any(child, until_s=until_s)


def signal_name(number: int) -> str:
    """Return ``SIGSEGV`` for 11; ``signal N`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
