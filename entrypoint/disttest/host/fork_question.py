"""A question that only a fork of this process may ask, because asking it changes the process."""

from __future__ import annotations

import os
from collections.abc import Callable

from disttest.host.process import Exit, end_all, fork_child


def ask_fork(question: Callable[[], bytes], *, limit_s: float) -> tuple[bytes, Exit | None]:
    """Run a function in a silent fork and return its answer; the fork is ended in any case.

    Args:
        question: function that returns the answer.
        limit_s: time allowed, in seconds.

    Returns:
        The answer, empty if there is none, and how the fork ended; None if it exceeded the limit.
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
