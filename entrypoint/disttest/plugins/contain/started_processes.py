"""The processes that an isolated test has started: their names, and those that died during the test."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import NamedTuple

import psutil

from disttest.clock import monotonic, sleep
from disttest.host.descendants import is_helper, shown_command
from disttest.host.proc import descendants
from disttest.host.process import Exit, exit_of_zombie, send_signal, signal_name
from disttest.limits import EVIDENCE_POLL_S, TICK_S
from disttest.plugins.contain.limits import STARTED_STACKS_S
from disttest.runtime.messages.roles import role_file
from disttest.runtime.world.evidence import EvidenceSource, StacksAnswer


class _Descendant(NamedTuple):
    pid: int

    def signal(self, signum: int) -> None:
        send_signal(self.pid, signum)


_MOST_NAMED = 16


class Descendants:
    """The descendants of a process. Call ``look`` regularly: a dead process reveals little about itself."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._names: dict[int, str] = {}
        self._known: set[int] = set()
        """Processes whose name was the same in two scans. A fork has its parent's name until it starts its program."""
        self._dead: set[int] = set()

    def look(self) -> tuple[str, ...]:
        """Record all living descendants; return one sentence for each that died badly since and was not waited for."""
        news = []
        for pid in sorted(descendants(self._pid)):
            ended = exit_of_zombie(pid)
            if ended is None:
                self._learn(pid)
            elif pid not in self._dead:
                self._dead.add(pid)
                if ended.code != 0:
                    news.append(self._describe(pid, ended))
        return tuple(news)

    def describe(self, stacks: Path) -> str:
        """Describe the living descendants, with the Python stacks of those that answer as their parent does: its forks.

        Args:
            stacks: the file that all of them write their answers into.
        """
        parts = []
        deadline = monotonic() + STARTED_STACKS_S
        living = (pid for pid in sorted(descendants(self._pid)) if exit_of_zombie(pid) is None)
        for pid in islice((pid for pid in living if not is_helper(pid)), _MOST_NAMED):
            self._learn(pid)
            name = _with_role(self._names[pid], role_file(stacks, pid))
            parts.append(f"{name}:\n{_ask(pid, stacks, deadline) or '  (its Python stack is not available)'}")
        return "\n\n".join(parts)

    def _learn(self, pid: int) -> None:
        if pid in self._known:
            return
        name = _name(pid)
        if self._names.get(pid) == name:
            self._known.add(pid)
        self._names[pid] = name

    def _describe(self, pid: int, ended: Exit) -> str:
        how = (
            f"was killed by {signal_name(ended.signal)}" if ended.signal else f"exited with code {ended.code}"
        )
        return f"{self._names.get(pid, f'process {pid}')} {how}, and the test did not wait for it"


def _with_role(name: str, file: Path) -> str:
    """Return the name with the role that a spawned process has recorded, in place of its command line."""
    try:
        role = file.read_text()
    except OSError:
        return name
    return f"{name.partition(' (')[0]} ({role})"


def _name(pid: int) -> str:
    """Name a process: ``process 12 (rank 1, python -c …)``."""
    try:
        rank = psutil.Process(pid).environ().get("RANK", "")
        command = shown_command(pid)
    except (psutil.Error, ProcessLookupError):
        return f"process {pid}"
    return f"process {pid} ({f'rank {rank}, ' if rank.isdecimal() else ''}{command})"


def _ask(pid: int, stacks: Path, deadline: float) -> str:
    """Return the stacks that one process adds to the file; empty if it has no handler.

    Args:
        pid: the process.
        stacks: the file.
        deadline: end of the wait on the monotonic clock. The process has one tick at least, even if earlier ones
            have used up the time.
    """
    source = EvidenceSource(_Descendant(pid), stacks)
    if not source.ask_stacks():
        return ""
    answer = StacksAnswer(source)
    deadline = max(deadline, monotonic() + TICK_S)
    while not answer.is_whole() and monotonic() < deadline:
        sleep(EVIDENCE_POLL_S)
    return source.stacks()
