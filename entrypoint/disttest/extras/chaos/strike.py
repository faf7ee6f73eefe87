"""What the four kinds of faults do, in the process that they strike."""

from __future__ import annotations

import signal

from disttest.clock import sleep
from disttest.extras.chaos.case import Fault, FaultKind


class FaultRaised(RuntimeError):
    """What the call raises; torch's errors of communication are RuntimeErrors, too."""


def strike(fault: Fault, *, delay_s: float) -> None:
    """Do it to this process; returns after a delay only, or when a stopped process goes on.

    Raises:
        FaultRaised: that is the fault.
    """
    match fault.kind:
        case FaultKind.KILL:
            signal.raise_signal(signal.SIGKILL)
        case FaultKind.STOP:
            signal.raise_signal(signal.SIGSTOP)
        case FaultKind.RAISE:
            raise FaultRaised(f"fault {fault}, planted by disttest chaos")
        case FaultKind.DELAY:
            sleep(delay_s)
