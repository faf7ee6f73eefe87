"""Inject the four kinds of faults into the own process."""

from __future__ import annotations

import signal

from disttest.clock import sleep
from disttest.extras.chaos.case import Fault, FaultKind


class InjectedError(RuntimeError):
    """Exception that the call raises. A RuntimeError, as torch's communication errors are."""


def inject(fault: Fault, *, delay_s: float) -> None:
    """Inject the fault into this process. Return only after a delay, or when a stopped process is continued.

    Raises:
        InjectedError: the fault is an exception.
    """
    match fault.kind:
        # os.kill(os.getpid(), …) lets the kernel choose any thread, such as one of gloo's; raise_signal hits this
        # one.
        case FaultKind.KILL:
            signal.raise_signal(signal.SIGKILL)
        # A stopped process keeps its connections: its peers see silence, as from a machine that hangs.
        case FaultKind.STOP:
            signal.raise_signal(signal.SIGSTOP)
        case FaultKind.RAISE:
            raise InjectedError(f"fault {fault}, planted by disttest chaos")
        case FaultKind.DELAY:
            sleep(delay_s)
