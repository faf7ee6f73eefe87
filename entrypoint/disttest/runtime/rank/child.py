"""Set up a forked child: its output, its handler for the stacks signal, and its libraries."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from disttest.descriptors import append_to, high_copy, move_high, point_output_at
from disttest.host.cuda_answers import answer_for_cuda, answer_for_numba, leave_answers_to_cuda
from disttest.host.cuda_touch import check_by_nvml, forget_check_by_nvml, unwatch_cuda, watch_cuda
from disttest.host.process import STACKS_SIGNAL, flush_output
from disttest.runtime.messages.protocol import Channel


def with_high_descriptor(channel: Channel) -> Channel:
    """Move the channel to a descriptor number that tests do not touch."""
    fd = high_copy(channel.fileno())
    channel.close()
    return Channel(socket.socket(fileno=fd))


def close_in_forks(channel: Channel) -> None:
    """Close the channel in every fork of this process: a copy of a rank must neither send nor receive for it."""
    # Python calls this after os.fork() of any code in this process, multiprocessing's included.
    os.register_at_fork(after_in_child=channel.close)


_captured_fds: list[int] = []
# Descriptors to which pytest moved the original output while it captures.
_saved_fds: list[int] = []


def redirect_output(config: pytest.Config, log: Path) -> None:
    """Point stdout, stderr and pytest's capture files at the log from now on."""
    fd = _open_log(log)
    # Text that is still buffered belongs to the previous log.
    flush_output()
    targets = {1, 2, *_stop_capture(config)}
    # `_stop_capture` has noted above which descriptors these are.
    for copy in _copies_of_output():
        os.dup2(fd, copy, inheritable=False)
    # Only 1 and 2 are inheritable: programs that a test starts write to the log, and hold no descriptor of
    # pytest's capture.
    for target in targets:
        os.dup2(fd, target, inheritable=target in (1, 2))
    # If a test has closed stdout or stderr, the log itself has got one of these numbers.
    if fd not in targets:
        os.close(fd)
    if not _is_closed(sys.stdin):
        # A rank that reads from the terminal would take input from the command and from other ranks.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        # The same holds for stdin: the null device may have become descriptor 0.
        if null:
            os.close(null)
    sys.stdout = _text_stream(1)
    sys.stderr = _text_stream(2)
    # Libraries that restore the streams after a redirection take them from here.
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc,assignment]
    # Disable it first; otherwise handlers that a test installed would remain.
    faulthandler.disable()
    faulthandler.enable(2)


def _is_closed(stream: object) -> bool:
    """Whether this is a closed stream; a test may have replaced it by anything."""
    try:
        return bool(getattr(stream, "closed", False))
    except Exception:  # noqa: BLE001
        return False


def _open_log(log: Path) -> int:
    try:
        return append_to(log)
    except FileNotFoundError:
        # The world has made the folder, and a test may have removed it since.
        log.parent.mkdir(parents=True, exist_ok=True)
        return append_to(log)


def _copies_of_output() -> list[int]:
    """List the descriptors that pytest has saved of the command's own output.

    A reader of that output waits until every copy is closed, which matters if a rank cannot be killed. There are none
    in a rank that has closed them before.
    """
    outputs = {_identity(fd) for fd in _saved_fds} - {None}
    _saved_fds.clear()
    found = map(int, os.listdir("/proc/self/fd")) if outputs else ()  # noqa: PTH208
    return [fd for fd in found if fd > 2 and _identity(fd) in outputs]


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        facts = os.fstat(fd)
    except OSError:
        return None
    return (
        (facts.st_dev, facts.st_ino) if stat.S_ISFIFO(facts.st_mode) or stat.S_ISCHR(facts.st_mode) else None
    )


def _text_stream(fd: int) -> IO[str]:
    # A test may replace this stream. Its collection must not close a descriptor that C code still writes to.
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _stop_capture(config: pytest.Config) -> list[int]:
    """Turn pytest's capturing into ``-s`` in this process; return the descriptors it wrote to.

    The capture objects of the parent are neither closed nor flushed, because their files are shared with it. pytest has
    no public way to replace them, hence the private attributes.
    """
    manager = config.pluginmanager.getplugin("capturemanager")
    # pytest has no public way to end capturing without closing its files (pytest 8.4 to 9.2).
    if manager is None or manager._method == "no":  # noqa: SLF001
        return _captured_fds
    from _pytest.capture import _get_multicapture

    parent = manager._global_capturing  # noqa: SLF001
    for side in (parent.out, parent.err) if parent is not None else ():
        with contextlib.suppress(AttributeError, OSError, ValueError):
            _captured_fds.append(side.tmpfile.fileno())
            _saved_fds.append(side.targetfd_save)
    # Its finalizers would flush and close files that the parent still uses.
    _kept_alive.append(parent)
    # Subtests ask the option, and would capture their output.
    config.option.capture = "no"
    manager._method = "no"  # noqa: SLF001
    manager._global_capturing = _get_multicapture("no")  # noqa: SLF001
    manager._global_capturing.start_capturing()  # noqa: SLF001
    return _captured_fds


# Objects of the parent whose finalizers must not run in this process.
_kept_alive: list[Any] = []


_stacks_files: dict[Path, IO[bytes]] = {}


def register_stacks(path: Path) -> None:
    """Answer the stacks signal. The file appears only when it is safe to send the signal."""
    # The world sends the signal only if the file has its final name, so the handler must be registered before.
    pending = path.with_suffix(".pending")
    # faulthandler keeps the number of the descriptor only, so the file must stay open: the dictionary holds
    # it.
    file = _stacks_files.get(path) or os.fdopen(move_high(append_to(pending)), "ab", buffering=0)
    # A test may have installed its own handler.
    faulthandler.unregister(STACKS_SIGNAL)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
    if path not in _stacks_files:
        _stacks_files[path] = file
        pending.rename(path)


def join_stacks(path: Path) -> None:
    """Answer the stacks signal into the file of another process, appended to its content.

    Raises:
        OSError: the file no longer exists.
    """
    file = os.fdopen(move_high(os.open(path, os.O_WRONLY | os.O_APPEND)), "ab", buffering=0)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
    _stacks_files[path] = file


def stacks_path() -> Path | None:
    """The file for the answers to the stacks signal; None if this process has no handler."""
    return next(reversed(_stacks_files), None)


def renew_libraries(threads: int) -> None:
    """Refresh what a fork inherits: thread counts, cached device counts, log streams."""
    for handler in _stream_handlers():
        handler.setStream(sys.stderr)
    torch = sys.modules.get("torch")
    if torch is not None:
        # A fork inherits the size of the pool but not its threads: https://github.com/pytorch/pytorch/issues/58962
        torch.set_num_threads(threads)
        # The parent may have counted the GPUs under another CUDA_VISIBLE_DEVICES, and torch keeps the count without a
        # public way to reset it (torch 2.9 to 2.15): https://github.com/pytorch/pytorch/issues/95073
        if hasattr(torch.cuda, "_cached_device_count"):
            torch.cuda._cached_device_count = None  # noqa: SLF001


# A file, not a pipe: a slow reader of a pipe would block the rank, and a crash would lose what is unread.
# docs/decisions/0014-log-is-a-file.md
def send_output_to(path: Path) -> None:
    """Send this process's output, including tracebacks, to a file."""
    point_output_at(path)
    sys.stdout = _text_stream(1)
    sys.stderr = _text_stream(2)


_undo_check: list[Callable[[], None]] = []


def stay_off_cuda() -> None:
    """Mark this process as one that forks ranks: it must not initialize CUDA."""
    _undo_check.append(check_by_nvml())
    watch_cuda({"torch": answer_for_cuda, "numba.cuda": answer_for_numba})


def inherit_stay_off_cuda() -> None:
    """Do the same in a program started by such a process, which inherits the variable in its environment."""
    forget_check_by_nvml()
    stay_off_cuda()


def use_cuda_freely() -> None:
    """Restore torch's own behaviour in a process that does not fork ranks."""
    unwatch_cuda()
    if (torch := sys.modules.get("torch")) is not None:
        leave_answers_to_cuda(torch)
    while _undo_check:
        _undo_check.pop()()


def _stream_handlers() -> Iterator[logging.StreamHandler[Any]]:
    # `logging.shutdown` uses this list (Python 3.11 to 3.13). torch has a thousand loggers. A look at each
    # copied its page: 465 page faults and 2 ms in each rank.
    for handler in [reference() for reference in logging._handlerList]:  # type: ignore[attr-defined]  # noqa: SLF001
        # A FileHandler is a subclass with its own file, which a fork keeps.
        if type(handler) is logging.StreamHandler:
            yield handler
