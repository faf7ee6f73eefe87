"""Signals to the launcher: an exception while it prepares, a message once the container runs."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupted(BaseException):
    """A signal came before there was a container to forward it to."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class SignalSwitch:
    """Selects the receiver of signals."""

    def __init__(self) -> None:
        self._deliver: Callable[[int], None] | None = None

    def deliver_to(self, deliver: Callable[[int], None] | None) -> None:
        """Hand further signals to a function; raise Interrupted again for None."""
        self._deliver = deliver

    def ignore(self) -> None:
        """Ignore further signals."""
        self._deliver = lambda _signum: None

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._deliver is None:
            raise Interrupted(signum)
        self._deliver(signum)


@contextlib.contextmanager
def catch_signals() -> Iterator[SignalSwitch]:
    """Catch signals within the context; restore the previous handlers afterwards."""
    switch = SignalSwitch()
    before = {signum: signal.signal(signum, switch.handle) for signum in FORWARDED}
    try:
        yield switch
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
