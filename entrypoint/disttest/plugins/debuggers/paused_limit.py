"""The time limit of an ordinary test, suspended while the user is in pytest's own debugger."""

from __future__ import annotations

import signal
from typing import Any, NamedTuple

from disttest.clock import monotonic
from disttest.limits import NO_LIMIT_S
from disttest.runtime.controller import time_limits
from disttest.runtime.controller.time_limits import TimeLimits


class _Pause(NamedTuple):
    limits: TimeLimits
    handler: Any
    """Handler of the alarm, which each phase of a test sets anew."""
    left_s: float
    again_s: float
    since_s: float


_pause: _Pause | None = None


def pause(limits: TimeLimits) -> None:
    """Stop the alarm of the running phase: at ``breakpoint()``, it would end the test in the middle of a command."""
    global _pause
    handler = signal.getsignal(signal.SIGALRM)
    # `--pdb` opens a debugger after the phase, when there is no alarm; that of a test or of pytest-timeout is theirs.
    if getattr(handler, "__module__", "") != time_limits.__name__:
        return
    left_s, again_s = signal.setitimer(signal.ITIMER_REAL, 0)
    # The end of a phase looks at the clock as well. A user who steps (`n`) to the end of the test never resumes it.
    limits.forgive(NO_LIMIT_S)
    _pause = _Pause(limits, handler, left_s, again_s, monotonic())


def resume() -> None:
    """Set the alarm again, unless another phase has begun."""
    global _pause
    paused, _pause = _pause, None
    if paused is None or signal.getsignal(signal.SIGALRM) is not paused.handler:
        return
    paused.limits.forgive(monotonic() - paused.since_s - NO_LIMIT_S)
    # Zero would disable the timer.
    signal.setitimer(signal.ITIMER_REAL, max(1e-6, paused.left_s), paused.again_s)
