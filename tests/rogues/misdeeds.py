"""What a rank can do wrong, one function for each; `matrix.py` has ranks do it, in every phase and kind of world."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import multiprocessing.resource_tracker
import multiprocessing.shared_memory
import os
import pathlib
import resource
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time

KEPT: list[object] = []
"""What leaks."""
LONG_S = 600


def raises():
    raise RuntimeError("a misdeed")


def raises_a_novel():
    raise RuntimeError("a misdeed\n" + ("chapter and verse " * 60 + "\n") * 10_000)


def leaves(code):
    return lambda: os._exit(code)


def dies_of(signum):
    def die():
        os.kill(os.getpid(), signum)
        time.sleep(LONG_S)

    return die


def segfaults():
    ctypes.string_at(0)


def hangs_in_python():
    time.sleep(LONG_S)


def hangs_with_the_gil_held():
    nothing_comes, _ = os.pipe()
    ctypes.PyDLL(None).read(nothing_comes, ctypes.create_string_buffer(1), 1)  # goes on after a signal


def hangs_uninterruptibly():
    """Waits for a child of vfork(2): state D, deaf to all signals but SIGKILL, with the GIL held."""
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    clone_vfork = 0x4000
    if ctypes.PyDLL(None).syscall(clone, clone_vfork | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        time.sleep(LONG_S)
        os._exit(0)


def hangs_deaf_to_sigterm():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(LONG_S)


def hangs_after_it_replaced_all_signal_handlers():
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, lambda *_: None)
    while True:
        time.sleep(LONG_S)


def replaces_all_signal_handlers():
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, lambda *_: None)


def forks_a_daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(LONG_S)
        os._exit(0)


def leaves_a_child_that_holds_all_descriptors():
    KEPT.append(subprocess.Popen(["sleep", str(LONG_S)], close_fds=False))


def forks_and_comes_back_twice():
    """The copy goes on with the test as if it were the rank."""
    os.fork()


def floods():
    """Standard output and standard error, by turns."""
    line = b"x" * 1023 + b"\n"
    size = int(os.environ.get("MISDEED_FLOOD", 32 << 20))
    for fd in itertools.islice(itertools.cycle((1, 2)), size >> 20):
        os.write(fd, line * 1024)


def leaks_thousands_of_variables():
    """Each is named in the journal."""
    for number in range(3000):
        os.environ[f"LEAKED_{number}"] = "x" * 1000


def _sockets():
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                yield int(name)


def _channel():
    """The control channel is kept out of the way, on a high descriptor."""
    return max(_sockets())


def writes_nonsense_into_its_channel():
    os.write(_channel(), b"this is no message at all")
    time.sleep(LONG_S)


def announces_a_message_that_never_comes():
    os.write(_channel(), (1000).to_bytes(4, "big") + b"{")
    os._exit(0)


def closes_all_descriptors():
    os.closerange(3, 1000)
    time.sleep(LONG_S)


def leaks_shared_memory():
    segment = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
    multiprocessing.resource_tracker.unregister(segment._name, "shared_memory")
    KEPT.append(segment)


def fills_shared_memory():
    """As much as fits; the caller sees to it that this is not much."""
    with open(f"/dev/shm/fills-{os.getpid()}", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * (1 << 20))
    with open(f"/dev/shm/more-{os.getpid()}", "wb", buffering=0) as file:
        file.write(b"x" * (1 << 20))


def leaks_a_listening_socket():
    listener = socket.create_server(("127.0.0.1", 0))
    print("port", listener.getsockname()[1])
    KEPT.append(listener)


def leaks_a_directory():
    os.makedirs(os.path.join(tempfile.mkdtemp(), "and", "more"))


def leaks_a_thread():
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()


def deletes_its_working_directory():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    shutil.rmtree(folder)


def uses_up_all_descriptors():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    with contextlib.suppress(OSError):
        while True:
            KEPT.append(os.open(os.devnull, os.O_RDONLY))


def traces():
    sys.settrace(lambda *_: None)


def stops_the_clocks():
    """And then fails, after a while, at what it believes to be the start of time."""
    time.sleep(0.05)
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, lambda: 0.0)
    raise RuntimeError("a misdeed")


def jumps_with_the_clock():
    """To the year 2100 and stays there."""
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, lambda: 4_102_444_800.0)


def signals_its_parent(signum):
    def attack():
        os.kill(os.getppid(), signum)
        time.sleep(LONG_S)

    return attack


def takes_the_port_of_the_rendezvous():
    socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))


def is_killed_when_it_waits_for_its_next_test():
    """A grandchild kills it as soon as it waits in recv(2) on its channel, and makes that known by a file."""
    rank, marker = os.getpid(), os.environ["MISDEED_MARKER"]
    reads = {"x86_64": 45, "aarch64": 207}[os.uname().machine]
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:
            words = pathlib.Path(f"/proc/{rank}/syscall").read_text().split()
            if words[0] == str(reads) and int(words[1], 16) >= 200:
                break
            time.sleep(0.001)
        pidfd = os.pidfd_open(rank)
        os.kill(rank, signal.SIGKILL)
        select.select([pidfd], [], [])  # its supervisor can see it now, too
        open(marker, "w").close()
        os._exit(0)


def takes_all_memory():
    """Page by page, until somebody stops it."""
    while True:
        KEPT.append(bytearray(os.urandom(1)) * (8 << 20))


def freezes_itself():
    """In a freezer cgroup (version 1) that the caller made: not even SIGKILL ends it before it is thawed."""
    folder = pathlib.Path(os.environ["MISDEED_FREEZER"])
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    (folder / "freezer.state").write_text("FROZEN")
    time.sleep(LONG_S)
