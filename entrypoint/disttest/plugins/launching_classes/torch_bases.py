"""torch's own test bases on supervised ranks: starting and joining are replaced, in this main process only.

Everything else is the installed torch's code: its constructors, ``_run``, ``run_test``, ``setUp`` and ``tearDown``,
and all overrides of subclasses. The replacement follows the fork, so that no other process has a patched torch.
"""

from __future__ import annotations

import inspect
import sys
import types
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from disttest.errors import UsageError
from disttest.host.fork_hazard import fork_hazard
from disttest.plugins.launching_classes.account import thread_records
from disttest.plugins.launching_classes.rank_host import ForkHost, raise_outcome
from disttest.plugins.launching_classes.ranks import current_account
from disttest.plugins.launching_classes.recognise import rank_count, torch_module
from disttest.plugins.launching_classes.reuse import own_classes
from disttest.plugins.launching_classes.team import Rank, RankRequest, RanksWereUsed
from disttest.results.exit_codes import ExitRule
from disttest.testing.hosting import RanksFailed, ThreadReport

_SPAWNED_KEYWORDS = ("fake_pg",)


def host_torch_bases(host: ForkHost) -> None:
    """Make torch's bases start and join their ranks through the host, in this process and its forks."""
    module = torch_module()
    if module is None:
        return
    _host_processes(module.MultiProcessTestCase, host)
    report_torchs_threads(host.report_threads)
    if hasattr(module, "MultiProcContinuousTest"):
        _host_continuous(module.MultiProcContinuousTest, host)


# --- MultiProcessTestCase


def _host_processes(base: Any, host: ForkHost) -> None:
    wrap_method = base.join_or_run
    start_by_spawn = base._start_processes
    join_foreign = base._join_processes

    def start(self: Any, proc: object = None) -> None:
        # Asked for each test: an earlier one may have started a thread or initialised CUDA in this process.
        if hazard := fork_hazard(on_gpus=host.on_gpus):
            _announce(hazard)
            start_by_spawn(self, proc or _spawn_context())
            self.pid_to_pipe.update({pid: _RecordingPipe(pipe) for pid, pipe in self.pid_to_pipe.items()})
            return
        cls, name, file_name = type(self), self._current_test_name(), self.file_name
        keywords = _keywords(self)

        def run(rank: int, name: str, file_name: str, pipe: object) -> None:
            cls._run(rank, name, file_name, pipe, **keywords)

        size = _checked_count(self, host)
        if host.may_reuse and _rule_of(self, _method_of(self)) == ExitRule():
            items = tuple(sorted(keywords.items()))
            ranks = host.reuse_ranks(
                RankRequest(cls, tuple(own_classes(cls, base)), size, items, name, file_name, run)
            )
        else:
            ranks = host.start(size, lambda rank, pipe: run(rank, name, file_name, pipe))
        self.processes = list(ranks)
        # torch looks up the pipe of each process, for example when a test times out.
        self.pid_to_pipe.update({rank.pid: _NoPipe() for rank in self.processes})

    def join(self: Any, method: Callable[..., Any]) -> None:
        rule = _rule_of(self, method)
        if self.processes and not isinstance(self.processes[0], Rank):
            pipes = {pid: pipe for pid, pipe in self.pid_to_pipe.items() if isinstance(pipe, _RecordingPipe)}
            host.join_foreign(
                self.processes,
                rule,
                lambda: join_foreign(self, method),
                lambda: {pid: pipe.message_text for pid, pipe in pipes.items()},
            )
            return
        try:
            host.join(rule)
        except RanksWereUsed:
            # The rendezvous file and all that `setUp` has made belong to the run that does not count.
            self.tearDown()
            self.setUp()  # this starts new ranks
            host.join(rule)

    def join_or_run(self: Any, method: Callable[..., Any]) -> Any:
        return wrap_method(self, _watched(method))

    # Subclasses call either. torch's `_spawn_processes` would also set the start method of this process.
    base._start_processes = start
    base._spawn_processes = start
    base._join_processes = join
    base.join_or_run = join_or_run


def _keywords(case: Any) -> dict[str, Any]:
    """Return the keywords that the installed torch passes to ``_run``, if this class's ``_run`` accepts them."""
    parameters = inspect.signature(type(case)._run).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    # A class that overrides `_run` without the keyword would fail with a TypeError.
    return {name: getattr(case, name, False) for name in _SPAWNED_KEYWORDS if takes_all or name in names}


def _checked_count(case: Any, host: ForkHost) -> int:
    if host.by_torchs_rules and case.world_size in (0, "0"):
        return 0
    try:
        return rank_count(case.world_size)
    except UsageError as error:
        raise RanksFailed(f"{type(case).__name__}.world_size: {error}") from None


def _method_of(case: Any) -> Any:
    """Return the method that a rank runs, as torch has stored it."""
    return getattr(getattr(case, case._testMethodName), "__wrapped__", None)


def _rule_of(case: Any, method: Callable[..., Any]) -> ExitRule:
    special = getattr(case, "special_return_code_checks", {})
    return ExitRule(
        expected=int(special.get(method, 0)), any_code=method in getattr(case, "skip_return_code_checks", ())
    )


def _watched(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the test method: a rank records any exception that it raises."""

    @_like(method)
    def watched(*args: Any, **kwargs: Any) -> Any:
        account = current_account()
        return (account.watch(method) if account else method)(*args, **kwargs)

    return watched


def _like(method: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    import functools

    return functools.wraps(method)


class _RecordingPipe:
    """The main process's end of the pipe to a rank that torch started. It stores the received traceback."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self.message_text = ""

    def recv(self) -> object:
        """Receive a message of the rank."""
        message = self._pipe.recv()
        self.message_text = message if isinstance(message, str) else self.message_text
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)


class _NoPipe:
    """The main process's end of a rank's pipe. It carries nothing: a rank reports over its channel."""

    closed = False

    def poll(self, timeout: float | None = None) -> bool:
        del timeout
        return False

    def send(self, value: object) -> None:
        del value

    def recv(self) -> object:
        raise EOFError("what a rank raised is in its report")

    def close(self) -> None:
        self.closed = True


def _announce(hazard: str) -> None:
    print(f"disttest: ranks are spawned by torch instead of forked here: {hazard}", file=sys.stderr)  # noqa: T201


def _spawn_context() -> Any:
    import multiprocessing

    return multiprocessing.get_context("spawn").Process


# --- MultiThreadedTestCase


def report_torchs_threads(report: ThreadReport) -> None:
    """Report the exception of each thread. torch joins and judges them, and merges their texts."""
    module = torch_module()
    if module is None:
        return
    base = module.MultiThreadedTestCase
    join, check = base._join_threads.__func__, base._check_return_codes.__func__
    # torch does not pass the number of threads to `_check_return_codes`.
    sizes: list[int] = []

    def join_threads(cls: Any, threads: Any, *args: Any, **kwargs: Any) -> Any:
        sizes[:] = [len(threads)]
        return join(cls, threads, *args, **kwargs)

    def check_return_codes(cls: Any, failed_ranks: Any, *args: Any, **kwargs: Any) -> Any:
        # Before torch raises one exception with the texts of all threads.
        report(sizes[0], [(rank, exc_info[1]) for rank, exc_info in failed_ranks])
        return check(cls, failed_ranks, *args, **kwargs)

    base._join_threads = classmethod(join_threads)
    base._check_return_codes = classmethod(check_return_codes)


def judge_threads(size: int, raised: Sequence[tuple[int, BaseException]], *, may_differ: bool) -> None:
    """Raise the outcome of the threads of an ordinary test, unless its harness raises what a thread has raised.

    Raises:
        RanksFailed: a thread exited or was interrupted, or skipped while another one passed.
        unittest.SkipTest: all of them skipped.
    """
    errors = (error for _, error in raised if isinstance(error, Exception))
    # Any other exception is raised by the harness, and tests of the harness may expect it.
    if all(isinstance(error, unittest.SkipTest) for error in errors):
        records = thread_records(size, raised, log="")
        raise_outcome([record for record in records if not record.woken], may_differ=may_differ)


# --- MultiProcContinuousTest


def _host_continuous(base: Any, host: ForkHost) -> None:
    def spawn(cls: Any, world_size: Any) -> None:
        cls.processes, cls.task_queues, cls.completion_queues = [], [], []
        cls.rdvz_file = _rendezvous_file()
        size = rank_count(world_size)

        def prepare(rank: int) -> None:
            cls.rank, cls.world_size = rank, size
            cls._init_pg(rank, size, cls.rdvz_file)

        host.keep(cls, size, prepare, cls._run_test_given_id)

    def wait_or_run(self: Any, method: Callable[..., Any]) -> Any:
        @_like(method)
        def wrapper(self: Any) -> None:
            if self.rank != self.MAIN_PROCESS_RANK:
                method()
                return
            cls = type(self)
            try:
                host.run_kept(cls, self.id())
            finally:
                # After a failure, the next test gets new ranks instead of torch's poison pill.
                cls._processes_spawned = host.keeps(cls)
                # torch removes only the file of ranks that are left at the end of the class.
                if not cls._processes_spawned:
                    Path(cls.rdvz_file).unlink(missing_ok=True)

        return types.MethodType(wrapper, self)

    # torch's own starts ranks that disttest cannot supervise, and skips all further tests after a failure.
    base._spawn_processes = classmethod(spawn)
    base._worker_run_main_wait = wait_or_run
    tear_down = base.__dict__["tearDownClass"].__func__

    def tear_down_class(cls: Any) -> None:
        host.release(cls)
        tear_down(cls)

    base.tearDownClass = classmethod(tear_down_class)


def _rendezvous_file() -> str:
    import tempfile

    with tempfile.NamedTemporaryFile(delete=False) as file:
        return file.name
