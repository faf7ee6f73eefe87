"""Whether this process can be forked, and if not, why: CUDA is initialised, or a thread runs that a fork would lack."""

from __future__ import annotations

from collections.abc import Sequence

from disttest.host.cuda_touch import BESIDE_TORCH, cuda_touched, is_driver_initialised
from disttest.host.loaded import loaded
from disttest.host.other_threads import OtherThread, end_helpers, threads

_MOST_NAMED = 4


def fork_hazard(*, on_gpus: bool) -> str | None:
    """Why forking this process would be unsafe, in words; None when it is safe.

    Args:
        on_gpus: forks are to use GPUs; a process that has only asked CUDA something cannot have such.
    """
    if cuda := cuda_hazard(on_gpus=on_gpus):
        return cuda
    unsafe = unsafe_threads()
    return f"{name_threads(unsafe)} besides the main one" if unsafe else None


def holds_gpu() -> bool:
    """Whether this process has initialised CUDA, and so holds memory of a GPU until it ends."""
    torch = loaded("torch")
    return torch is not None and torch.cuda.is_initialized()


def cuda_hazard(*, on_gpus: bool) -> str:
    """The part of CUDA in it; empty where there is none."""
    if not holds_gpu() and not (on_gpus and (cuda_touched() or is_driver_initialised())):
        return ""
    by = cuda_touched() or ("" if holds_gpu() else BESIDE_TORCH)
    return "CUDA was initialised" + (f" by {by}" if by else "")


def forks_are_like_new() -> bool:
    """Whether a fork of this process may ask a driver anything, as a new process could: nothing of it has begun here."""
    if cuda_hazard(on_gpus=True):
        return False
    end_helpers()
    return all(thread.safe_to_fork_beside and not thread.is_of_driver for thread in threads())


def unsafe_threads() -> tuple[OtherThread, ...]:
    """The threads beside which this process must not be forked, once those are ended that nobody needs."""
    end_helpers()
    return tuple(thread for thread in threads() if not thread.safe_to_fork_beside)


def name_threads(found: Sequence[OtherThread]) -> str:
    """``2 threads (pt_tcpstore_uv of libtorch_cpu.so, at-import of test_x.wait)``."""
    names = list(dict.fromkeys(map(str, found)))
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    count = f"{len(found)} thread{'s' if len(found) > 1 else ''}"
    return f"{count} ({', '.join([*names[:_MOST_NAMED], *more])})"
