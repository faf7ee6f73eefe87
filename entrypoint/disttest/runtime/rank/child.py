"""A forked child makes itself at home: its own output, answer to the stacks signal, and libraries."""

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

from disttest.descriptors import append_to, high_copy, point_output_at
from disttest.host.cuda_answers import answer_for_cuda, answer_for_numba, leave_answers_to_cuda
from disttest.host.cuda_touch import check_by_nvml, forget_check_by_nvml, unwatch_cuda, watch_cuda
from disttest.host.process import STACKS_SIGNAL, flush_output
from disttest.runtime.messages.protocol import Channel


def out_of_the_way(channel: Channel) -> Channel:
    """The same channel on a descriptor that tests do not touch."""
    fd = high_copy(channel.fileno())
    channel.close()
    return Channel(socket.socket(fileno=fd))


def belong_to_this_process(channel: Channel) -> None:
    """Take the channel from every fork of this process: a copy of a rank must neither speak nor listen for it."""
    os.register_at_fork(after_in_child=channel.close)


_captured_fds: list[int] = []
# Where pytest has put the output that it captures.
_saved_fds: list[int] = []


def redirect_output(config: pytest.Config, log: Path) -> None:
    """Point fds 1 and 2 (and whatever pytest captured output into) at the log, from here on."""
    fd = _open_log(log)
    flush_output()
    targets = {1, 2, *_stop_capture(config)}
    for copy in _copies_of_output():
        os.dup2(fd, copy, inheritable=False)
    for target in targets:
        os.dup2(fd, target, inheritable=target in (1, 2))
    if fd not in targets:
        os.close(fd)
    if not _is_closed(sys.stdin):
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        if null:
            os.close(null)
    sys.stdout = _text_stream(1)
    sys.stderr = _text_stream(2)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc,assignment]
    faulthandler.disable()  # or the handlers of a test that put its own would stay
    faulthandler.enable(2)


def _is_closed(stream: object) -> bool:
    """Whether it is a closed stream; a test may have put anything in its place."""
    try:
        return bool(getattr(stream, "closed", False))
    except Exception:  # noqa: BLE001
        return False


def _open_log(log: Path) -> int:
    try:
        return append_to(log)
    except FileNotFoundError:
        log.parent.mkdir(parents=True, exist_ok=True)
        return append_to(log)


def _copies_of_output() -> list[int]:
    """Descriptors of the command's own output that pytest has put aside: whoever reads it waits for their end.

    They matter when a process cannot be killed. In a rank that has let go of them there are none.
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
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _stop_capture(config: pytest.Config) -> list[int]:
    """Turn pytest's capturing into ``-s`` for this process; return the descriptors it wrote to.

    The parent's capture objects are left as they are, neither closed nor flushed: they are shared with it.
    """
    manager = config.pluginmanager.getplugin("capturemanager")
    if manager is None or manager._method == "no":  # noqa: SLF001
        return _captured_fds
    from _pytest.capture import _get_multicapture

    parent = manager._global_capturing  # noqa: SLF001
    for side in (parent.out, parent.err) if parent is not None else ():
        with contextlib.suppress(AttributeError, OSError, ValueError):
            _captured_fds.append(side.tmpfile.fileno())
            _saved_fds.append(side.targetfd_save)
    _kept_alive.append(parent)
    manager._method = "no"  # noqa: SLF001
    manager._global_capturing = _get_multicapture("no")  # noqa: SLF001
    manager._global_capturing.start_capturing()  # noqa: SLF001
    return _captured_fds


# Objects of the parent whose finalizers must not run in this process.
_kept_alive: list[Any] = []


_stacks_files: dict[Path, IO[bytes]] = {}


def register_stacks(path: Path) -> None:
    """Answer the stacks signal; the file appears only when it is safe to send it."""
    pending = path.with_suffix(".pending")
    file = _stacks_files.get(path) or pending.open("ab", buffering=0)
    faulthandler.unregister(STACKS_SIGNAL)  # a test may have put a handler of its own
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
    if path not in _stacks_files:
        _stacks_files[path] = file
        pending.rename(path)


def join_stacks(path: Path) -> None:
    """Answer the stacks signal into the file of another process, behind what is there.

    Raises:
        OSError: there is no such file any more.
    """
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), "ab", buffering=0)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
    _stacks_files[path] = file


def stacks_path() -> Path | None:
    """Where this process answers the stacks signal; None if it does not."""
    return next(reversed(_stacks_files), None)


def renew_libraries(threads: int) -> None:
    """Renew what a fork copied: thread counts, cached device counts, log streams."""
    for handler in _stream_handlers():
        handler.setStream(sys.stderr)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
        if hasattr(torch.cuda, "_cached_device_count"):
            torch.cuda._cached_device_count = None  # noqa: SLF001


def speak_into(path: Path) -> None:
    """Send this process's output, tracebacks included, to a file of its own."""
    point_output_at(path)
    sys.stdout = _text_stream(1)
    sys.stderr = _text_stream(2)


_undo_check: list[Callable[[], None]] = []


def stay_off_cuda() -> None:
    """This process forks ranks: it must not initialise CUDA, and is told apart from those that may."""
    _undo_check.append(check_by_nvml())
    watch_cuda({"torch": answer_for_cuda, "numba.cuda": answer_for_numba})


def inherit_stay_off_cuda() -> None:
    """The same in a new program that such a process has started: the variable in its environment is ours to undo."""
    forget_check_by_nvml()
    stay_off_cuda()


def use_cuda_freely() -> None:
    """This process forks no ranks (any more): torch is as its user has it."""
    unwatch_cuda()
    if (torch := sys.modules.get("torch")) is not None:
        leave_answers_to_cuda(torch)
    while _undo_check:
        _undo_check.pop()()


def _stream_handlers() -> Iterator[logging.StreamHandler[Any]]:
    # The list that logging.shutdown goes through: torch has a thousand loggers, and to look at each is to copy its page.
    for handler in [reference() for reference in logging._handlerList]:  # type: ignore[attr-defined]  # noqa: SLF001
        if type(handler) is logging.StreamHandler:
            yield handler
