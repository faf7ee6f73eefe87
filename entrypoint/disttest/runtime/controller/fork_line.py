"""The line between the controller and a process from which worlds are forked, both ends of it.

    controller --(order of a world; the world's end of the channel)--> parent --(pid; pidfd)--> controller
    controller --(pid that has ended)--> parent --(how it ended)--> controller

Worlds are the parent's children, so it alone can be told how they ended; everything else the controller does through
the pidfd, as with children of its own.
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
from disttest.host.huge_pages import before_forks
from disttest.host.process import Child, Exit, fork_child, leave
from disttest.limits import KILL_S
from disttest.model import Frozen
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.messages.protocol import Channel, WorldOrder
from disttest.runtime.rank.child import speak_into
from disttest.runtime.world.world_supervisor import RankStarter, make_world

# Bytes of a message; what is longer is a file.
_LARGEST = 4096


class ForkOrder(Frozen):
    """What a world is told, in a file."""

    world: WorldOrder
    error_log: str
    clock_offset_s: float
    """The run's clock minus the monotonic one."""
    modules: tuple[str, ...]
    """The files of its tests, for ranks that collect by themselves."""


class Recipe(Frozen):
    """How processes below the fork server collect: the same for all of a run."""

    arguments: tuple[str, ...]
    """Of pytest."""
    host: TargetHost


class Fork(Frozen, tag="fork"):
    """Fork a world; its end of the channel comes with it."""

    order: str
    forks: int
    """How many it takes, the world's own included."""


class Reap(Frozen, tag="reap"):
    """Tell how a world ended."""

    pid: int


class Collect(Frozen, tag="collect"):
    """Have a fork collect files; its end of a line comes with it."""

    modules: str
    """A file with their names."""
    log: str


class Forked(Frozen, tag="forked"):
    """A child was forked; its pidfd comes with it."""

    pid: int


class Reaped(Frozen, tag="reaped"):
    """How a child ended."""

    code: int | None
    signal: int | None


Question = Fork | Reap | Collect
_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Forked | Reaped)


class ParentLost(InfrastructureError):
    """A process from which worlds are forked has ended, or could not start."""


class _Grandchild(Child):
    """A child of the parent: that one is told how it ended."""

    def __init__(self, pid: int, pidfd: int, reap: Callable[[int], Exit]) -> None:
        super().__init__(pid, pidfd=pidfd)
        self._ask = reap

    def _reap(self) -> Exit | None:
        return self._ask(self.pid) if self.has_ended() else None


class ForkLine:
    """The controller's end."""

    def __init__(self, line: socket.socket, log: Path, *, limit_s: float) -> None:
        """Speak to a parent.

        Args:
            line: connected to it.
            log: what it prints, if it fails.
            limit_s: for an answer.
        """
        self.line = line
        self.line.settimeout(limit_s)
        self._log = log

    def fork(self, order: ForkOrder, channel: Channel) -> Child:
        """Fork a world.

        Raises:
            ParentLost: it can fork no more.
        """
        path = Path(order.world.scratch_dir) / "world.order.json"
        path.write_bytes(msgspec.json.encode(order, enc_hook=str))
        return self.ask_for_child(Fork(order=str(path), forks=order.world.forks), channel.fileno())

    def ask_for_child(self, question: Fork | Collect, fd: int) -> Child:
        """Have a child forked that gets a descriptor.

        Raises:
            ParentLost: it can fork no more.
        """
        answer, fds = self._ask(question, [fd])
        assert isinstance(answer, Forked)
        return _Grandchild(answer.pid, fds[0], self._reap)

    def read(self) -> bytes:
        """One message that was not asked for.

        Raises:
            ParentLost: there will be none.
        """
        return self._receive()[0]

    def _reap(self, pid: int) -> Exit:
        try:
            answer, _ = self._ask(Reap(pid=pid), [])
        except ParentLost:
            return Exit(code=1)
        assert isinstance(answer, Reaped)
        return Exit(code=answer.code, signal=answer.signal)

    def _ask(self, question: Question, fds: Sequence[int]) -> tuple[Forked | Reaped, list[int]]:
        try:
            socket.send_fds(self.line, [msgspec.json.encode(question)], fds)
        except OSError as error:
            raise ParentLost(self._end(str(error))) from error
        answer, passed = self._receive()
        return _answers.decode(answer), passed

    def _receive(self) -> tuple[bytes, list[int]]:
        try:
            message, passed, _, _ = socket.recv_fds(self.line, _LARGEST, 1)
        except OSError as error:
            raise ParentLost(self._end(str(error))) from error
        if not message:
            raise ParentLost(self._end("it has ended"))
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
        """Have it forked; what belongs to this process never comes there."""
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
    """Fork what is asked for until the controller goes.

    Args:
        line: to the controller.
        starter_for: how a world starts its ranks.
        collect: what a fork does that is to collect, with its end of a line; None: it is never asked to.
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
                ended_child = children.pop(pid)
                ended = ended_child.wait(KILL_S) or Exit(code=1)
                ended_child.close()
                line.send(msgspec.json.encode(Reaped(code=ended.code, signal=ended.signal)))
                continue
        os.close(fds[0])
        children[child.pid] = child
        socket.send_fds(line, [msgspec.json.encode(Forked(pid=child.pid))], [child.fileno()])


def _fork_world(
    path: Path, channel_fd: int, line: socket.socket, starter_for: Callable[[ForkOrder], RankStarter]
) -> Child:
    def world() -> None:
        line.close()
        order = msgspec.json.decode(path.read_bytes(), type=ForkOrder, dec_hook=lambda kind, text: kind(text))
        speak_into(Path(order.error_log))
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
        speak_into(Path(question.log))
        collect(question, line_fd)

    return fork_child(collector, new_session=True)
