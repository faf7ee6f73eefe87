"""Builds runs for the tests of reports, the way real ones come to be: events, folded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from disttest.model import (
    Cause,
    Hardware,
    Invocation,
    Outcome,
    RankEnd,
    RankRecord,
    TestCase,
    TestResult,
    WorldShape,
)
from disttest.results.events import (
    AnyEvent,
    CollectionFailed,
    Noted,
    RunFinished,
    RunStarted,
    TestCollected,
    TestFinished,
    TestStarted,
    WorldEnded,
    WorldStarted,
)
from disttest.results.fold import RunResult, fold
from disttest.results.journal import Journal

EPOCH_S = 1_780_000_000.0
"""When sample runs start: 2026-05-28T20:26:40Z."""


class SampleRun:
    """Collects events; a test is collected, runs in a world of its own, and finishes."""

    def __init__(
        self,
        *,
        root: str = "/nowhere/repo",
        gpus: tuple[str, ...] = (),
        slots: int = 4,
        cpu_slots: int = 0,
        invocation: Invocation | None = None,
    ) -> None:
        self.now = EPOCH_S
        self.events: list[AnyEvent] = [
            RunStarted(
                at_s=self.now,
                run_id="run-1",
                argv=("disttest", "ddp"),
                root=root,
                hardware=Hardware(cpus=4, gpus=gpus, python="3.11.9", torch="2.13.0", platform="Linux"),
                slots=slots,
                cpu_slots=cpu_slots,
                disttest="0.1.0",
                invocation=invocation or Invocation(),
            )
        ]
        self.worlds = 0

    def test(
        self,
        outcome: Outcome = Outcome.PASSED,
        *,
        name: str = "test_sum",
        size: int | None = 2,
        suite: str = "ddp",
        seconds: float = 0.5,
        attempts: Iterable[dict[str, Any]] = (),
        slots: tuple[str, ...] | None = None,
        at_s: float | None = None,
        case: dict[str, Any] | None = None,
        **result: Any,
    ) -> str:
        """Add a test and its attempts; ``attempts`` are the earlier ones. Returns its node id."""
        self.now = at_s if at_s is not None else self.now
        device = "cuda" if slots and slots[0].startswith("gpu") else "cpu"
        shape = WorldShape(size=size, backend="gloo", device=device) if size else None
        full = f"{name}[{shape}]" if shape else name
        nodeid = f"tests/test_{suite}.py::{full}"
        fields = {
            "nodeid": nodeid,
            "slug": f"{suite}-{name}-{size}"[:60],
            "classname": f"tests.test_{suite}",
            "name": full,
            "file": f"tests/test_{suite}.py",
            "line": 12,
            "suite": suite,
            "world": shape,
        }
        test = TestCase(**{**fields, **(case or {})})
        self.events.append(TestCollected(at_s=EPOCH_S, test=test))
        every = [*attempts, {"outcome": outcome, "duration_s": seconds, **result}]
        for number, attempt in enumerate(every, 1):
            self.attempt(test, slots=slots, number=number, **attempt)
        return test.nodeid

    def attempt(
        self, test: TestCase, *, number: int, slots: tuple[str, ...] | None, outcome: Outcome, **result: Any
    ) -> None:
        duration_s = result.setdefault("duration_s", 0.5)
        world_id = ""
        if test.world:
            self.worlds += 1
            world_id = f"w{self.worlds}"
            held = slots or tuple(f"cpu:{index}" for index in range(test.world.size))
            self.events.append(
                WorldStarted(
                    at_s=self.now, world_id=world_id, shape=test.world, slots=held, pid=100 + self.worlds
                )
            )
        self.events.append(TestStarted(at_s=self.now, nodeid=test.nodeid, attempt=number, world_id=world_id))
        started = self.now
        self.now += duration_s
        verdict = TestResult(
            nodeid=test.nodeid,
            outcome=outcome,
            attempt=number,
            started_at_s=started,
            world_id=world_id,
            **result,
        )
        self.events.append(TestFinished(at_s=self.now, result=verdict))
        if world_id:
            self.events.append(WorldEnded(at_s=self.now, world_id=world_id))

    def note(self, message: str) -> None:
        self.events.append(Noted(at_s=self.now, message=message))

    def collection_error(self, nodeid: str, message: str) -> None:
        self.events.append(CollectionFailed(at_s=self.now, nodeid=nodeid, message=message))

    def finish(self, exit_code: int | None = None, reason: str = "") -> RunResult:
        so_far = fold(self.events)
        code = exit_code if exit_code is not None else int(bool(so_far.bad))
        self.events.append(RunFinished(at_s=self.now, exit_code=code, reason=reason))
        return fold(self.events)


def rank(number: int, outcome: Outcome | None = Outcome.PASSED, **fields: Any) -> RankRecord:
    end = RankEnd.REPORTED if outcome else RankEnd.EXITED
    return RankRecord(
        **{"rank": number, "end": end, "outcome": outcome, "phase": "call", "pid": 1000 + number, **fields}
    )


def write_log(results_dir: Path, log: str, content: str | bytes) -> str:
    path = results_dir / log
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return log


ASSERTION = """\
    def test_sum(world):
        x = torch.full((8,), float(world.rank))
        dist.all_reduce(x)
>       assert x[0] == 3
E       assert tensor(1.) == 3

tests/test_ddp.py:19: AssertionError"""

STACKS = """\
Thread 0x00007f2a (most recent call first):
  File "/opt/venv/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/nowhere/repo/tests/test_ddp.py", line 33 in test_hang
  File "/opt/venv/site-packages/_pytest/python.py", line 159 in pytest_pyfunc_call"""


def mixed_run(results_dir: Path | None = None) -> RunResult:
    """One of everything: the run that golden files and the browser look at."""
    run = SampleRun(cpu_slots=4)

    def logs(slug: str, size: int, attempt: int = 1) -> list[str]:
        names = [f"logs/{slug}/attempt-{attempt}/rank{number}.log" for number in range(size)]
        for number, name in enumerate(names):
            if results_dir:
                lines = [
                    f"[{step * 0.125:8.3f}] rank {number} step {step}: loss {1 / (step + 1):.4f}"
                    for step in range(40)
                ]
                write_log(results_dir, name, "\n".join(lines) + "\n")
        return names

    for size in (1, 2, 4):
        run.test(name="test_gradients_equal_single_process", size=size, seconds=0.2 * size)
    failing = logs("ddp-test_all_reduce-2", 2)
    run.test(
        Outcome.FAILED,
        name="test_all_reduce",
        cause=Cause.TEST,
        message="rank 1 failed: assert tensor(1.) == 3",
        details=ASSERTION,
        culprit=1,
        victims=(0,),
        seconds=1.25,
        ranks=(
            rank(
                0,
                None,
                end=RankEnd.KILLED,
                message="waited in all_reduce",
                log=failing[0],
                durations_s={"setup": 0.01, "call": 1.2},
            ),
            rank(
                1,
                Outcome.FAILED,
                message="assert tensor(1.) == 3",
                details=ASSERTION,
                failed_after_s=0.2,
                log=failing[1],
                durations_s={"setup": 0.02, "call": 0.18},
            ),
        ),
    )
    hanging = logs("ddp-test_hang-2", 2)
    run.test(
        Outcome.ERROR,
        name="test_hang",
        cause=Cause.TEST,
        message="rank 0 hung: it waited in all_reduce at tests/test_ddp.py:33 at the deadline of 5 s",
        details=STACKS,
        culprit=0,
        seconds=5.0,
        ranks=(
            rank(
                0,
                None,
                end=RankEnd.KILLED,
                hung=True,
                message="still running after 5 s",
                stacks=STACKS,
                log=hanging[0],
                durations_s={"setup": 0.02},
            ),
            rank(1, log=hanging[1], durations_s={"setup": 0.02, "call": 0.1, "teardown": 0.01}),
        ),
    )
    crashing = logs("ddp-test_crash-4", 4)
    run.test(
        Outcome.ERROR,
        name="test_crash",
        size=4,
        cause=Cause.TEST,
        message="rank 2 was killed by signal 11 (SIGSEGV) in call",
        culprit=2,
        victims=(0, 1, 3),
        seconds=0.8,
        ranks=tuple(
            rank(
                number,
                None,
                end=RankEnd.SIGNALLED,
                signal=11,
                message="killed by SIGSEGV",
                failed_after_s=0.4,
                log=crashing[number],
            )
            if number == 2
            else rank(
                number,
                None,
                end=RankEnd.KILLED,
                message="ended by us after rank 2 died",
                log=crashing[number],
            )
            for number in range(4)
        ),
    )
    for size in (2, 4):
        run.test(
            Outcome.ERROR,
            name="test_on_broken_gpu",
            suite="collectives",
            size=size,
            cause=Cause.INFRASTRUCTURE,
            message="GPU 3 (NVIDIA H200) fell off the bus: Xid 79",
            seconds=0.1,
            slots=tuple(f"gpu:{index}" for index in range(size)),
        )
    flaky = logs("collectives-test_flaky-2", 2)
    run.test(
        name="test_flaky",
        suite="collectives",
        attempts=[
            {
                "outcome": Outcome.FAILED,
                "message": "rank 0 failed: connection reset by peer",
                "details": "RuntimeError: connection reset by peer",
                "duration_s": 0.3,
                "cause": Cause.TEST,
                "culprit": 0,
            }
        ],
        ranks=tuple(rank(number, log=flaky[number]) for number in range(2)),
    )
    for size in (2, 4):
        run.test(
            Outcome.SKIPPED,
            name="test_nccl",
            suite="collectives",
            size=size,
            seconds=0.0,
            message="needs 2 GPUs, there are 0",
        )
    run.test(
        Outcome.SKIPPED,
        name="test_windows",
        suite="collectives",
        size=None,
        seconds=0.0,
        message="only on Windows",
    )
    run.test(Outcome.XFAILED, name="test_known_bug", suite="collectives", size=2, message="issue 42")
    run.test(name="test_ordinary", suite="unit", size=None, seconds=0.01)
    run.collection_error(
        "tests/test_broken.py",
        "tests/test_broken.py:3: in <module>\n    import nothing\nE   ModuleNotFoundError: no 'nothing'",
    )
    run.note("tests/test_threads.py left 1 thread behind at import: its worlds start as fresh interpreters")
    return run.finish()


def stopped_run() -> RunResult:
    """A run that ended early: one test was skipped, the two after it were not run."""
    run = SampleRun()
    run.test(Outcome.SKIPPED, name="test_skipped", message="no GPU", seconds=0.0)
    for name in ("test_after", "test_last"):
        run.test(Outcome.NOT_RUN, name=name, message="not run: stopping", seconds=0.0)
    return run.finish()


def write_journal(path: Path) -> None:
    """Write the journal of a run that has had one test and is not at its end."""
    run = SampleRun()
    run.test(name="test_a")
    journal = Journal(path)
    for event in run.events:
        journal.append(event)
    journal.close()
