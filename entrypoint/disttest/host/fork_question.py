"""A question that only a fork of this process may ask, since asking it changes the process that asks."""

from __future__ import annotations

import os
from collections.abc import Callable

from disttest.host.process import Exit, end_all, fork_child


def ask_fork(question: Callable[[], bytes], *, limit_s: float) -> tuple[bytes, Exit | None]:
    """Have a fork answer; it prints nothing, and nothing is left of it.

    Returns:
        The answer (empty if it gave none) and how the fork ended; None: not within the limit.
    """
    answer = os.memfd_create("answer")

    def main() -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.write(answer, question())

    child = fork_child(main, new_session=True)
    try:
        ended = child.wait(limit_s)
        end_all([child])
        return os.pread(answer, os.fstat(answer).st_size, 0), ended
    finally:
        child.close()
        os.close(answer)
