"""Supervision of a running container: stream its output, forward signals, and end it in time.

GitHub cancels with SIGINT, SIGTERM 7.5 s later and SIGKILL another 2.5 s later, sent to this process only:
https://docs.github.com/en/actions/reference/workflow-cancellation-reference. The container gets the signal immediately
and has six seconds to write its reports. Then it is killed, which leaves time to remove it and to hand files back.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

import requests
from docker.errors import APIError, DockerException
from msgspec import structs

from disttest.errors import EngineError
from disttest.extras.container.engine import engine_errors, explain
from disttest.extras.container.limits import CONTAINER_DRAIN_S, CONTAINER_KILL_S, CONTAINER_STOP_S
from disttest.host.event_loop import catch
from disttest.model import Frozen

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
    before = {signum: catch(signum, switch.handle) for signum in FORWARDED}
    try:
        yield switch
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


SIGKILL_CODE = 137
"""Exit code of a container whose process was killed."""

Write = Callable[[bytes | None, bytes | None], None]
"""Function that takes data of standard output and of standard error."""


class Container(Protocol):
    """The part of the SDK's container that is used here."""

    def start(self) -> None: ...  # noqa: D102
    def kill(self, signal: int | str | None = None) -> None: ...  # noqa: D102
    def wait(self, **arguments: Any) -> dict[str, Any]: ...  # noqa: D102
    def attach(self, **arguments: Any) -> Any: ...  # noqa: D102


class Signalled(Frozen):
    """A signal was received."""

    signum: int


class Exited(Frozen):
    """The container ended."""

    code: int


class Lost(Frozen):
    """The connection to the engine was lost."""

    error: str


class ContainerOutcome(Frozen):
    """Outcome of a container."""

    code: int
    signum: int = 0
    """First signal that was received; 0 if none was."""
    killed: bool = False
    """Whether it did not end in time after that."""
    out_of_memory: bool = False
    """Whether the kernel killed it for lack of memory."""
    lasted_s: float = 0.0


def supervise(
    container: Container,
    *,
    write: Write,
    switch: SignalSwitch,
    clock: Callable[[], float] = time.monotonic,
    grace_s: float = CONTAINER_STOP_S,
) -> ContainerOutcome:
    """Start the container and return when it has ended.

    Raises:
        EngineError: it could not be started, or the connection to the engine was lost.
    """
    # A signal handler puts into it. Only SimpleQueue.put is reentrant: Queue.put could wait for a lock of its
    # own thread (https://docs.python.org/3/library/queue.html#queue.SimpleQueue.put).
    mailbox: queue.SimpleQueue[Signalled | Exited | Lost] = queue.SimpleQueue()
    with engine_errors("attaching to the container"):
        # Attached before the start, so that no output is lost.
        output = container.attach(stdout=True, stderr=True, stream=True, demux=True)
    # Before the start: a signal that arrives while the engine starts the container waits in the mailbox.
    switch.deliver_to(lambda signum: mailbox.put(Signalled(signum=signum)))
    try:
        began_s = clock()
        with engine_errors("starting the container"):
            container.start()
        pump = _in_background(lambda: _pump(output, write))
        _in_background(lambda: _await(container, mailbox))
        outcome = _follow(container, mailbox, clock=clock, grace_s=grace_s)
        outcome = structs.replace(outcome, lasted_s=clock() - began_s)
        # With a limit: a reader of this process's output that is blocked must not keep the launch from its
        # end.
        pump.join(CONTAINER_DRAIN_S)
        return outcome
    finally:
        switch.deliver_to(None)


def _in_background(work: Callable[[], None]) -> threading.Thread:
    # The SDK's calls block, so threads wait for the container and its output.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _pump(output: Any, write: Write) -> None:
    # The end of the reader must not end the run: its reports are still owed.
    # OSError is a reader that is gone, ValueError a stream that was closed.
    with contextlib.suppress(DockerException, requests.RequestException, OSError, ValueError):
        for out, err in output:
            write(out, err)


def _await(container: Container, mailbox: queue.SimpleQueue[Signalled | Exited | Lost]) -> None:
    try:
        # Only here docker-py treats a timeout of None as no limit, and not as its default.
        # https://github.com/docker/docker-py/issues/2964
        mailbox.put(Exited(code=int(container.wait(timeout=None)["StatusCode"])))
    except (DockerException, requests.RequestException, OSError) as error:
        mailbox.put(Lost(error=f"{type(error).__name__}: {error}"))


def _follow(
    container: Container,
    mailbox: queue.SimpleQueue[Signalled | Exited | Lost],
    *,
    clock: Callable[[], float],
    grace_s: float,
) -> ContainerOutcome:
    first, kill_at, killed = 0, float("inf"), False
    while True:
        left = kill_at - clock()
        try:
            # `get` raises OverflowError for an infinite timeout.
            message = mailbox.get(timeout=max(left, 0.0)) if kill_at < float("inf") else mailbox.get()
        except queue.Empty:
            if killed:
                raise EngineError("the engine could not kill the container; restart the engine") from None
            # Not `container.stop`, which sends SIGTERM again and waits for ten seconds more.
            _send(container, "SIGKILL")
            killed, kill_at = True, clock() + CONTAINER_KILL_S
            continue
        match message:
            case Exited(code=code):
                return ContainerOutcome(code=code, signum=first, killed=killed)
            case Lost(error=error):
                raise EngineError(
                    f"the connection to the engine was lost while the container ran: {explain(error)}"
                )
            case Signalled(signum=signum):
                _send(container, signum)
                # The first signal starts the grace period. Further ones are passed on and do not extend it.
                if not first:
                    first, kill_at = signum, clock() + grace_s


def _send(container: Container, signum: int | str) -> None:
    # Status 409: the container has just ended, and the waiter will report that.
    with contextlib.suppress(APIError, requests.RequestException):
        container.kill(signal=signum)
