"""Chaos in a rank: install the tool that injects the fault and observes the calls of one test."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from disttest import observe
from disttest.clock import monotonic, sleep
from disttest.extras.chaos.case import NAME, BaselineCall, ChaosCase, ChaosSeen, Fault, FaultKind, SeenError
from disttest.model import SeenCall
from disttest.observe import Call, Group, Tool, Wait, as_text, spec_of
from disttest.observe.operations import title_of
from disttest.outgoing import outgoing
from disttest.runtime.messages.portable import text_of
from disttest.runtime.rank.rank_test import RankTest


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


_MOST_CALLS = 50_000
_MOST_ERRORS = 50
_LONGEST = 2000
"""Characters kept of an exception's text."""
_MOST_SHOWN = 8
"""Elements of a tensor that are shown as numbers; larger tensors are shown by their digest."""


class ChaosTool(Tool):
    """Observer of the calls of one test in one rank.

    Args:
        case: the fault and its time limits.
        rank: number of this rank.
        announce: notifies the world, with the monotonic time, just before the fault is injected. It may be the last
            thing
            that this process does.
    """

    def __init__(self, case: ChaosCase, rank: int, announce: Callable[[float], object]) -> None:
        self._case = case
        self._announce = announce
        self._fault = case.fault if case.fault is not None and case.fault.rank == rank else None
        self._numbers = itertools.count(1)
        self._handed = itertools.count()
        self._began: dict[int, float] = {}
        self._calls: list[BaselineCall] = []
        self._errors: list[SeenError] = []
        self._lock = threading.Lock()
        self._limit = timedelta(seconds=case.limit_s)
        if case.fault is not None:
            # For point-to-point messages gloo keeps the time limit with which the group was made, so lowering it
            # later has no effect: https://github.com/pytorch/pytorch/issues/165422
            # Not restored: a test with a fault has a fresh world, whose processes end with it.
            _c10d().default_pg_timeout = min(_c10d().default_pg_timeout, self._limit)

    def report(self, properties: Iterable[tuple[str, Any]], raised: BaseException | None) -> ChaosSeen:
        """Return the observations, with the values that the test recorded and the exceptions it raised."""
        return ChaosSeen(
            handed=next(self._handed),
            calls=tuple(self._calls),
            errors=tuple(self._errors),
            raised=tuple(as_text(_words(error)[:_LONGEST]) for error in _shown(raised)),
            numbers=numbers_of(properties),
        )

    def take(self, call: Call, run: Callable[[], Any]) -> Any:
        """Run the call; inject the fault before or after it if this is the chosen call."""
        # Threads issue calls at the same time, and each call needs one number.
        with self._lock:
            number = next(self._numbers)
            if self._case.fault is None and number <= _MOST_CALLS:
                self._calls.append(_baseline_call(call))
        fault = self._fault
        if fault is None or fault.call != number:
            next(self._handed)
            return run()
        if not fault.during:
            self._inject()
        # A call that raises before it is handed over is not counted. in_world compares the count with the
        # baseline's to see a repetition.
        next(self._handed)
        result = run()
        if fault.during:
            self._inject()
        return result

    def _inject(self) -> None:
        assert self._fault is not None
        self._announce(monotonic())
        inject(self._fault, delay_s=self._case.delay_s)

    def on_group(self, group: Group, *, made: bool) -> None:
        """Lower the time limit of a group that was made with an explicit limit."""
        if made and self._case.fault is not None:
            _lower_limit(group, self._limit)

    def on_wait(self, wait: Wait) -> None:
        """Note when the wait began."""
        self._began[wait.n] = monotonic()

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Note the error that the wait raised, if any."""
        began_s = self._began.pop(wait.n, 0.0)
        if error is not None:
            what = title_of(wait.call.op) if wait.call else str(wait.kind)
            self._note(what, str(wait.site), error, began_s)

    def on_error(self, call: Call, error: BaseException) -> None:
        """Note that a call was refused."""
        self._note(title_of(call.op), str(call.site), error, monotonic())

    def _note(self, what: str, where: str, error: BaseException, began_s: float) -> None:
        # The injected exception is no reaction of the program.
        if isinstance(error, InjectedError) or len(self._errors) >= _MOST_ERRORS:
            return
        text = _words(error).partition("\n")[0]
        self._errors.append(
            SeenError(
                what=f"{what} at {where}" if where else what,
                text=as_text(text),
                began_s=began_s,
                ended_s=monotonic(),
            )
        )


def _words(error: BaseException) -> str:
    # The `__str__` of a test's exception may raise.
    return f"{type(error).__name__}: {text_of(error)}"


def _shown(error: BaseException | None, known: set[int] | None = None) -> Iterator[BaseException]:
    """Yield the exceptions that a traceback of this one shows, the last first, and the members of exception groups."""
    # Shared with the members: one that was raised while its group was handled leads back to the group.
    known = set() if known is None else known
    while error is not None and id(error) not in known:
        known.add(id(error))
        yield error
        for member in getattr(error, "exceptions", ()):
            yield from _shown(member, known)
        # As Python's traceback does: `raise … from None` hides the context.
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _lower_limit(group: Group, limit: timedelta) -> None:
    """Lower the time limit of a group; keep one that is lower already."""
    if group.timeout_s is not None and group.timeout_s <= limit.total_seconds():
        return
    # torch.distributed has no public lookup of a group by its name (torch 2.9 to 2.15).
    pg = next((pg for pg in _c10d()._world.pg_map if pg.group_name == group.name), None)  # noqa: SLF001
    if pg is not None:
        # ProcessGroup.set_timeout can replace this once all supported versions have it:
        # https://github.com/pytorch/pytorch/pull/158128
        _c10d()._set_pg_timeout(limit, pg)  # noqa: SLF001


def _c10d() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]


def _baseline_call(call: Call) -> BaselineCall:
    group = call.group
    known_as = group.description or group.name
    name = f"{title_of(call.op)} #{call.seq}{f' of group {known_as}' if known_as else ''}"
    return BaselineCall(
        op=call.op,
        group=group.name,
        members=group.ranks,
        seq=call.seq,
        peer=call.peer,
        root=call.root,
        tag=call.tag,
        shown=SeenCall(what=name, file=call.site.file, line=call.site.line, decides=True),
    )


def numbers_of(properties: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Map each name to its value as text; equal texts mean equal values, to the bit.

    Args:
        properties: arguments of ``record_property``; the last value of a name counts.
    """
    return {outgoing.text(text_of(name)): outgoing.text(_describe_value(value)) for name, value in properties}


def _describe_value(value: Any) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from disttest.observe.memory import digest_of

        whole = value.detach().cpu()
        # A sparse tensor has no single memory to digest.
        whole = whole if whole.layout is torch.strided else whole.to_dense()
        if whole.numel() <= _MOST_SHOWN:
            return repr(whole.tolist())
        return f"{spec_of(whole)} with digest {digest_of([whole]):08x}"
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  # the repr is the test's code
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def observe_test(test: RankTest) -> Generator[None, bool, bool]:
    """Observe a test that takes part in the run, from before its setup to after its teardown."""
    case = msgspec.convert(test.data[NAME], ChaosCase)
    peers = case.fault is not None and case.fault.rank != test.rank.number
    errors = _Errors()
    # The faulty rank may fail in any way, so only its peers are observed.
    if peers:
        test.rank.config.pluginmanager.register(errors, "disttest-chaos-errors")
    tool = _tool(test, case)
    result = yield
    # A peer that has failed ends its process, as a program does after an exception. gloo's neighbours of a dead rank
    # see their connections break, and the other ranks wait for those neighbours: a failed rank that stays would be
    # one more silent rank. The faulty rank does stay, since its peers have to cope with a program that lives on after
    # its own error.
    test.leaves = peers and errors.has_failed
    if tool is not None:
        test.report(NAME, tool.report(test.item.user_properties, errors.raised))
    return result


def _tool(test: RankTest, case: ChaosCase) -> ChaosTool | None:
    """Install the tool. A rank without torch has no call to inject a fault into."""
    if "torch.distributed" not in sys.modules:
        return None
    tool = ChaosTool(case, test.rank.number, lambda at_s: test.rank.note(NAME, at_s))
    observe.install(tool)
    return tool


class _Errors:
    """A pytest plugin that notes how the test fails in this rank."""

    def __init__(self) -> None:
        self.has_failed = False
        # The exception is judged, not its traceback: --tb=native changed verdicts when those lines were read.
        self.raised: BaseException | None = None
        """The first exception."""

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Note the exception of a phase."""
        if self.raised is None and call.excinfo is not None:
            self.raised = call.excinfo.value

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a phase failed."""
        self.has_failed |= report.failed
