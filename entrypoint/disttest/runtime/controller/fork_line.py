"""Protocol between the controller and a process from which worlds are forked, with both ends.

    controller --(order of a world; the world's end of the channel)--> parent --(pid; pidfd)--> controller
    controller --(pid that has ended)--> parent --(exit code or signal)--> controller

Worlds are children of the parent, so only the parent can wait for their exit status. The controller does everything
else through the pidfd, as with its own children.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from disttest.clock import monotonic
from disttest.errors import InfrastructureError
from disttest.host.fork_memory import before_forks
from disttest.host.process import Child, Exit, fork_child, leave
from disttest.limits import KILL_S
from disttest.model import Frozen
from disttest.runtime.controller.orders import Shared
from disttest.runtime.messages.protocol import Channel, WorldOrder
from disttest.runtime.rank.child import send_output_to
from disttest.runtime.world.world_supervisor import RankStarter, make_world

# Bytes of a message; larger content travels in a file.
_LARGEST = 4096


class ForkOrder(Frozen):
    """Everything that a world needs to start, in a file."""

    world: WorldOrder
    error_log: str
    clock_offset_s: float
    """The run's clock minus the monotonic clock."""
    modules: tuple[str, ...]
    """Files of its tests, for ranks that collect them."""


class Recipe(Frozen):
    """How processes below the fork server collect; the same for all of a run."""

    arguments: tuple[str, ...]
    """Arguments of pytest."""
    shared: Shared
    removed_plugins: tuple[str, ...] = ()
    """disttest's plugins that settings of pytest leave out, after they were loaded."""


class Fork(Frozen, tag="fork"):
    """Request to fork a world; the world's end of the channel is attached."""

    order: str
    forks: int
    """Number of forks that follow, including the world's own."""


class Reap(Frozen, tag="reap"):
    """Request for the exit status of a world."""

    pid: int


class Collect(Frozen, tag="collect"):
    """Request to fork a process that collects files; its end of a line is attached."""

    modules: str
    """File with the names of the files to collect."""
    log: str


class Forked(Frozen, tag="forked"):
    """Reply that a child was forked; its pidfd is attached."""

    pid: int


class Reaped(Frozen, tag="reaped"):
    """Exit status of a child."""

    code: int | None
    signal: int | None


Question = Fork | Reap | Collect
_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Forked | Reaped)


class ForkSourceLost(InfrastructureError):
    """A process from which worlds are forked has ended, or could not start."""


class _Grandchild(Child):
    """A child of the parent, which reports its exit status."""

    def __init__(self, pid: int, pidfd: int, reap: Callable[[int], Exit]) -> None:
        super().__init__(pid, pidfd=pidfd)
        self._ask = reap

    def _reap(self) -> Exit | None:
        return self._ask(self.pid) if self.has_ended() else None


class ForkLine:
    """The controller's end of the line."""

    def __init__(self, line: socket.socket, log: Path, *, limit_s: float) -> None:
        """Connect to a parent.

        Args:
            line: socket connected to it.
            log: file with its output, quoted if it fails.
            limit_s: time limit of an answer.
        """
        self.line = line
        self.line.settimeout(limit_s)
        self._log = log

    def fork(self, order: ForkOrder, channel: Channel) -> Child:
        """Fork a world.

        Raises:
            ForkSourceLost: the parent cannot fork any more.
        """
        path = Path(order.world.scratch_dir) / "world.order.json"
        # Paths as text, because a run with worlds has paths in UTF-8 only (`_check_paths` in session.py).
        path.write_bytes(msgspec.json.encode(order, enc_hook=str))
        return self.ask_for_child(Fork(order=str(path), forks=order.world.forks), channel.fileno())

    def ask_for_child(self, question: Fork | Collect, fd: int) -> Child:
        """Fork a child that receives a descriptor.

        Raises:
            ForkSourceLost: the parent cannot fork any more.
        """
        answer, fds = self._ask(question, [fd])
        assert isinstance(answer, Forked)
        return _Grandchild(answer.pid, fds[0], self._reap)

    def read(self) -> bytes:
        """Receive one unsolicited message.

        Raises:
            ForkSourceLost: the parent has ended.
        """
        return self._receive()[0]

    def _reap(self, pid: int) -> Exit:
        try:
            answer, _ = self._ask(Reap(pid=pid), [])
        except ForkSourceLost:
            # The status went with the parent. The pidfd has shown that the world ended.
            return Exit(code=1)
        assert isinstance(answer, Reaped)
        return Exit(code=answer.code, signal=answer.signal)

    def _ask(self, question: Question, fds: Sequence[int]) -> tuple[Forked | Reaped, list[int]]:
        try:
            # A SOCK_SEQPACKET socket keeps message borders, so one send is one receive.
            socket.send_fds(self.line, [msgspec.json.encode(question)], fds)
        except OSError as error:
            raise ForkSourceLost(self._end(str(error))) from error
        answer, passed = self._receive()
        return _answers.decode(answer), passed

    def _receive(self) -> tuple[bytes, list[int]]:
        try:
            message, passed, _, _ = socket.recv_fds(self.line, _LARGEST, 1)
        except OSError as error:
            raise ForkSourceLost(self._end(str(error))) from error
        if not message:
            raise ForkSourceLost(self._end("it has ended"))
        return message, passed

    def _end(self, why: str) -> str:
        said = self._log.read_text(errors="replace").strip()[-2000:] if self._log.exists() else ""
        return f"the process from which worlds are forked is lost: {why}" + (f":\n{said}" if said else "")


class WorldByLine:
    """Starts a world as a fork of another process."""

    def __init__(self, parent: ForkLine, modules: Sequence[str], clock: Callable[[], float]) -> None:
        self._parent = parent
        self._modules = tuple(modules)
        self._clock = clock

    def __call__(self, order: WorldOrder, channel: Channel, error_log: Path, close: Sequence[int]) -> Child:
        """Request the fork; descriptors of this process never reach it."""
        del close
        fork_order = ForkOrder(
            world=order,
            error_log=str(error_log),
            clock_offset_s=self._clock() - monotonic(),
            modules=self._modules,
        )
        return self._parent.fork(fork_order, channel)


# --- in the parent


def serve_line(
    line: socket.socket,
    starter_for: Callable[[ForkOrder], RankStarter],
    collect: Callable[[Collect, int], None] | None = None,
) -> NoReturn:
    """Handle requests until the controller closes the line.

    Args:
        line: socket connected to the controller.
        starter_for: returns how a world starts its ranks.
        collect: runs in a fork that collects, with its end of a line; None if that is never requested.
    """
    children: dict[int, Child] = {}
    while True:
        message, fds, _, _ = socket.recv_fds(line, _LARGEST, 1)
        if not message:
            leave(0)
        match _questions.decode(message):
            case Fork(order=path, forks=forks):
                before_forks(forks)
                child = _fork_world(Path(path), fds[0], line, starter_for)
            case Collect() as question:
                assert collect is not None
                child = _fork_collector(question, fds[0], line, collect)
            case Reap(pid=pid):
                # The controller asks only after the pidfd was readable, so the wait is short.
                ended_child = children.pop(pid)
                ended = ended_child.wait(KILL_S) or Exit(code=1)
                ended_child.close()
                line.send(msgspec.json.encode(Reaped(code=ended.code, signal=ended.signal)))
                continue
        # The child has its own copy.
        os.close(fds[0])
        children[child.pid] = child
        socket.send_fds(line, [msgspec.json.encode(Forked(pid=child.pid))], [child.fileno()])


def _fork_world(
    path: Path, channel_fd: int, line: socket.socket, starter_for: Callable[[ForkOrder], RankStarter]
) -> Child:
    def world() -> None:
        # The controller sees the end of this process by the end of the line, which a copy in a world would
        # keep open.
        line.close()
        order = msgspec.json.decode(path.read_bytes(), type=ForkOrder, dec_hook=lambda kind, text: kind(text))
        # A crash of the world process is explained by this file.
        send_output_to(Path(order.error_log))
        channel = Channel(socket.socket(fileno=channel_fd))

        def now() -> float:
            return monotonic() + order.clock_offset_s

        make_world(order.world, channel, starter_for(order), now).run()

    return fork_child(world, new_session=True)


def _fork_collector(
    question: Collect, line_fd: int, line: socket.socket, collect: Callable[[Collect, int], None]
) -> Child:
    def collector() -> None:
        line.close()
        send_output_to(Path(question.log))
        collect(question, line_fd)

    return fork_child(collector, new_session=True)
