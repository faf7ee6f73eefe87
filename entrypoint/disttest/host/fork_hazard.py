"""Hazards of forking this process: CUDA is initialised, or a thread runs that the fork would lack.

A question that would make this process unfit to be forked is asked by a fork of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from disttest.host.cuda_touch import BESIDE_TORCH, cuda_touched, is_driver_initialised
from disttest.host.imports import loaded
from disttest.host.other_threads import OtherThread, end_helpers, threads
from disttest.host.process import Exit, end_all, fork_child

_MOST_NAMED = 4


def fork_hazard(*, on_gpus: bool) -> str | None:
    """Return why forking this process would be unsafe; None if it is safe.

    Args:
        on_gpus: whether forks must be able to use GPUs. They cannot once this process has asked CUDA anything.
    """
    if cuda := cuda_hazard(on_gpus=on_gpus):
        return cuda
    unsafe = unsafe_threads()
    return f"{name_threads(unsafe)} besides the main one" if unsafe else None


def holds_gpu() -> bool:
    """Return whether this process has initialised CUDA, and so holds memory of a GPU until it ends."""
    torch = loaded("torch")
    return torch is not None and torch.cuda.is_initialized()


def cuda_hazard(*, on_gpus: bool) -> str:
    """Return the hazard that CUDA causes; empty if there is none."""
    if not holds_gpu() and not (on_gpus and (cuda_touched() or is_driver_initialised())):
        return ""
    by = cuda_touched() or ("" if holds_gpu() else BESIDE_TORCH)
    return "CUDA was initialised" + (f" by {by}" if by else "")


def forks_are_like_new() -> bool:
    """Return whether a fork may ask a driver, as a new process may: no part of the driver is active here."""
    if cuda_hazard(on_gpus=True):
        return False
    end_helpers()
    return all(thread.safe_to_fork_beside and not thread.is_of_driver for thread in threads())


def unsafe_threads() -> tuple[OtherThread, ...]:
    """Return the threads that make forking unsafe, after ending helper threads that are no longer needed."""
    end_helpers()
    return tuple(thread for thread in threads() if not thread.safe_to_fork_beside)


def name_threads(found: Sequence[OtherThread]) -> str:
    """Name the threads: ``2 threads (pt_tcpstore_uv of libtorch_cpu.so, at-import of test_x.wait)``."""
    names = list(dict.fromkeys(map(str, found)))
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    count = f"{len(found)} thread{'s' if len(found) > 1 else ''}"
    return f"{count} ({', '.join([*names[:_MOST_NAMED], *more])})"


def ask_fork(question: Callable[[], bytes], *, limit_s: float) -> tuple[bytes, Exit | None]:
    """Run a function in a silent fork and return its answer; the fork is ended in any case.

    Args:
        question: function that returns the answer.
        limit_s: time allowed, in seconds.

    Returns:
        The answer, empty if there is none, and how the fork ended; None if it exceeded the limit.
    """
    # Memory instead of a pipe: the fork never waits for a reader, so that its end is the only event to wait
    # for.
    answer = os.memfd_create("answer")

    def main() -> None:
        # A library that prints, or the traceback of a failed question, must not reach the output of pytest.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.write(answer, question())

    child = fork_child(main, new_session=True)
    try:
        ended = child.wait(limit_s)
        end_all([child])
        # `pread`, since the fork shares the offset of the file and has left it at the end.
        return os.pread(answer, os.fstat(answer).st_size, 0), ended
    finally:
        child.close()
        os.close(answer)
