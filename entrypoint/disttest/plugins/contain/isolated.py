"""Isolated tests: their process, which is not a rank, and its supervisor, a world without group and rendezvous.

The supervisor also names the processes that a test started, and those that died during the test.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import process as pools
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest

from disttest.clock import monotonic, sleep
from disttest.host.descendants import end_new_children, is_helper, shown_command, started_children
from disttest.host.proc import descendants
from disttest.host.process import (
    Exit,
    adopt_orphans,
    exit_of_zombie,
    flush_output,
    leave,
    send_signal,
    signal_name,
)
from disttest.limits import EVIDENCE_POLL_S, TICK_S
from disttest.model import StartedProcess, TestResult
from disttest.plugins.contain.fast_spawn import role_file, use_fast_spawn
from disttest.plugins.contain.hooks import FAST_SPAWN
from disttest.plugins.contain.limits import EXECUTORS_END_S, STARTED_STACKS_S
from disttest.results.hang_findings import crash_place
from disttest.runtime.messages.protocol import Channel, RunTest, TestDone, clean_text
from disttest.runtime.rank import watchdog
from disttest.runtime.rank.child import redirect_output, register_stacks, use_cuda_freely
from disttest.runtime.rank.rank import run_protocol, save, serve_orders, set_up_child, shared_fixtures
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.world.attempt import Attempt, RankProgress
from disttest.runtime.world.evidence import EvidenceSource, StacksAnswer
from disttest.runtime.world.judged_attempt import JudgedAttempt
from disttest.runtime.world.world_supervisor import WorldSupervisor


def serve_isolated(
    spec: RankSpec, channel: Channel, session: pytest.Session, items: Mapping[str, pytest.Item]
) -> None:
    """Run tests until the supervisor ends this process or is gone. Never returns."""
    channel = set_up_child(spec, channel, session.config)
    # Daemons of tests then stay descendants of this process, which finds and ends them.
    adopt_orphans()
    use_cuda_freely()
    if FAST_SPAWN.of(spec.settings):
        use_fast_spawn()
    serve_orders(spec, channel, session, lambda order: _run(spec, channel, order, session, items))
    save()
    _end_executors()
    leave(0)


def _executor_threads() -> list[pools._ExecutorManagerThread]:
    """Return the threads that manage the executors of processes that are in use."""
    # There is no public list of executors (Python 3.11 to 3.13). Those of a variable that is gone, and those that have
    # been shut down, are ending.
    threads = list(pools._threads_wakeups)  # noqa: SLF001
    return [thread for thread in threads if thread.is_alive() and not thread.is_shutting_down()]


def _end_executors() -> None:
    """End executors as Python does at its end, which `leave` does not reach: their workers would wait for ever."""
    threads, deadline = _executor_threads(), monotonic() + EXECUTORS_END_S
    for thread in threads:
        if (executor := thread.executor_reference()) is not None:
            executor.shutdown(wait=False, cancel_futures=True)
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))


def _run(
    spec: RankSpec,
    channel: Channel,
    order: RunTest,
    session: pytest.Session,
    items: Mapping[str, pytest.Item],
) -> None:
    redirect_output(session.config, Path(order.log))
    register_stacks(spec.stacks)
    before = started_children()
    run_protocol(items, order)
    # Processes of a wider fixture, such as a pool of workers, serve the next test, too.
    shared = bool(shared_fixtures(session))
    # So do the workers of an executor of the module.
    workers = {pid for thread in _executor_threads() for pid in tuple(thread.processes)}
    left = () if shared else end_new_children(before | workers)
    flush_output()
    leaks = (*left, *watchdog.stop_leftover())
    channel.send(TestDone(leaks=tuple(map(clean_text, leaks)), shares=shared))


class _Descendant(NamedTuple):
    pid: int

    def signal(self, signum: int) -> None:
        send_signal(self.pid, signum)


_MOST_NAMED = 16


class Descendants:
    """The descendants of a process. Call ``look`` regularly: a dead process reveals little about itself."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._found: dict[int, StartedProcess] = {}
        self._known: set[int] = set()
        """Processes whose command was the same in two scans. A fork has its parent's until it starts its program."""
        self._dead: set[int] = set()

    def look(self) -> tuple[str, ...]:
        """Record all living descendants; return one sentence for each that died badly since and was not waited for."""
        news = []
        # A zombie is read and not waited for: its parent, the test, has to get its exit code.
        for pid in sorted(descendants(self._pid)):
            ended = exit_of_zombie(pid)
            if ended is None:
                self._learn(pid)
            elif pid not in self._dead:
                self._dead.add(pid)
                if ended.code != 0:
                    news.append(self._describe(pid, ended))
        return tuple(news)

    def ask(self, stacks: Path) -> Iterator[StartedProcess]:
        """Yield the living descendants, with the Python stacks of those that answer as their parent does: its forks.

        Args:
            stacks: the file that all of them write their answers into.
        """
        deadline = monotonic() + STARTED_STACKS_S
        living = (pid for pid in sorted(descendants(self._pid)) if exit_of_zombie(pid) is None)
        for pid in islice((pid for pid in living if not is_helper(pid)), _MOST_NAMED):
            self._learn(pid)
            found = _with_role(self._found[pid], role_file(stacks, pid))
            yield msgspec.structs.replace(found, stacks=_ask(pid, stacks, deadline))

    def _learn(self, pid: int) -> None:
        if pid in self._known:
            return
        found = _process(pid)
        if self._found.get(pid) == found:
            self._known.add(pid)
        self._found[pid] = found

    def _describe(self, pid: int, ended: Exit) -> str:
        how = (
            f"was killed by {signal_name(ended.signal)}" if ended.signal else f"exited with code {ended.code}"
        )
        return f"{self._found.get(pid, StartedProcess(pid=pid))} {how}, and the test did not wait for it"


def _with_role(found: StartedProcess, file: Path) -> StartedProcess:
    """Return the process with the role that it has recorded if it was spawned, without its command line."""
    try:
        return StartedProcess(pid=found.pid, role=file.read_text())
    except OSError:
        return found


def _process(pid: int) -> StartedProcess:
    try:
        rank = psutil.Process(pid).environ().get("RANK", "")
        command = shown_command(pid)
    except (psutil.Error, ProcessLookupError):
        return StartedProcess(pid=pid)
    return StartedProcess(pid=pid, role=f"rank {rank}" if rank.isdecimal() else "", command=command)


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


# An isolated file is a world without ranks, so that the supervisor, the reports and the retries of worlds serve it.
# docs/decisions/0016-isolated-file-is-a-world.md
class IsolatedWorld(WorldSupervisor):
    """Watches the process of isolated tests and the processes that these start."""

    def _start_ranks(self) -> None:
        super()._start_ranks()
        self._below = Descendants(self._ranks.handles[0].child.pid)
        self._ranks.on_tick = self._look
        self._ranks.on_evidence = self._ask_below

    def _listen(self) -> socket.socket | None:
        return None

    def _log_name(self, rank: int) -> str:
        del rank
        return "output.log"

    def _judged(self, attempt: Attempt) -> JudgedAttempt:
        progress = attempt.ranks[0]
        if progress.death is None and any(report.outcome.is_bad for report in progress.reports):
            self._ranks.read_crash(progress)  # a process that it started may have crashed
        return super()._judged(attempt)

    def _look(self) -> None:
        self._look_around()
        self._look_below()

    def _look_below(self) -> None:
        if (attempt := self._ranks.attempt) is not None:
            for death in self._below.look():
                progress = attempt.ranks[0]
                progress.deaths_below = "; ".join(filter(None, (progress.deaths_below, death)))
                self._ranks.logs.log(progress.log).append(f"\n[disttest: {death}]\n")

    def _ask_below(self) -> None:
        if (attempt := self._ranks.attempt) is not None:
            self._look_below()
            attempt.ranks[0].started = tuple(self._below.ask(Path(self._order.scratch_dir) / "rank0.stacks"))


def with_deaths(result: TestResult, progress: RankProgress) -> TestResult:
    """Return the result of a test with the processes of the test that died.

    Args:
        result: result of the test.
        progress: progress of the process that ran it.
    """
    if not result.outcome.is_bad:
        return result
    if progress.death is None and (place := crash_place(progress.crash)):
        result = msgspec.structs.replace(result, message=f"{result.message} (a process crashed in {place})")
    if not progress.deaths_below:
        return result
    if progress.hung:  # it probably waited for them
        return msgspec.structs.replace(result, message=f"{progress.deaths_below} ({result.message})")
    return msgspec.structs.replace(result, notes=(*result.notes, progress.deaths_below))
