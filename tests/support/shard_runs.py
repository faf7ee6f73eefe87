"""Writes the results directories of shards, as runs leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from planning_cases import case

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
    Event,
    Noted,
    RunFinished,
    RunStarted,
    TestCollected,
    TestFinished,
    TestStarted,
    WorldEnded,
    WorldStarted,
)
from disttest.results.journal import FILE_NAME, Journal

START_S = 1_780_000_000.0


class ShardRun:
    """A journal in the making; each test takes a second in a world of its own."""

    def __init__(
        self,
        path: Path,
        shard: int | None = None,
        *,
        plan_id: str = "",
        at_s: float = START_S,
        **started: Any,
    ) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.now_s = at_s
        self.worlds = 0
        self._journal = Journal(path / FILE_NAME)
        facts = {
            "hardware": Hardware(cpus=2, gpus=("H100",) * 2),
            "disttest": "0.1.0",
            "plan_id": plan_id,
            "shard": shard,
            "invocation": started.pop("invocation", Invocation()),
        }
        # The supervisor knows neither the slots nor the root of pytest, and gives no id to the run.
        self.say(RunStarted, run_id="", argv=("disttest",), root="/cwd", slots=0, **facts)
        self.now_s += 5.0
        own = {"run_id": f"run-of-{path.name}", "slots": 2, **started}
        self.say(RunStarted, argv=("-p", "disttest"), root="/repo", **facts, **own)

    def say(self, kind: type[Event], **fields: Any) -> None:
        self._journal.append(kind(at_s=self.now_s, **fields))

    def collect(self, *tests: TestCase) -> None:
        for test in tests:
            self.say(TestCollected, test=test)

    def start(self, test: TestCase, *, attempt: int = 1) -> str:
        self.worlds += 1
        world_id = f"w{self.worlds}"
        shape = test.world or WorldShape(size=1, backend="gloo")
        shape = msgspec.structs.replace(shape, device="cuda")  # its hardware has GPUs
        self.say(WorldStarted, world_id=world_id, shape=shape, slots=("gpu:0", "gpu:1"), pid=1)
        self.now_s += 0.5
        self.say(TestStarted, nodeid=test.nodeid, attempt=attempt, world_id=world_id)
        return world_id

    def run(
        self,
        test: TestCase,
        outcome: Outcome = Outcome.PASSED,
        *,
        attempt: int = 1,
        seconds: float = 1.0,
        cause: Cause | None = None,
        log: str | None = None,
        **result: Any,
    ) -> None:
        """Collect and run a test. Its rank's log is written, unless ``log`` names one that is elsewhere."""
        if attempt == 1:
            self.collect(test)
        world_id = self.start(test, attempt=attempt)
        if log is None:
            log = f"logs/{test.slug}/attempt-{attempt}/rank0.log"
            file = self.path / log
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"log of {test.nodeid} in {self.path.name}\n")
        started_s = self.now_s
        self.now_s += seconds
        finished = TestResult(
            nodeid=test.nodeid,
            outcome=outcome,
            cause=cause or (Cause.TEST if outcome.is_bad else None),
            attempt=attempt,
            started_at_s=started_s,
            duration_s=seconds,
            world_id=world_id,
            ranks=(RankRecord(rank=0, end=RankEnd.REPORTED, outcome=outcome, log=log),),
            **result,
        )
        self.say(TestFinished, result=finished)
        self.say(WorldEnded, world_id=world_id)

    def skip(self, nodeid: str, message: str) -> None:
        """Collect a file or a folder that skips itself."""
        self.collect(msgspec.structs.replace(case("skipped"), nodeid=nodeid))
        skip = TestResult(nodeid=nodeid, outcome=Outcome.SKIPPED, phase="collect", message=message)
        self.say(TestFinished, result=skip)

    def note(self, message: str, nodeid: str = "") -> None:
        self.say(Noted, message=message, nodeid=nodeid)

    def finish(self, code: int = 0, reason: str = "") -> Path:
        self.say(RunFinished, exit_code=code, reason=reason)
        self._journal.close()
        return self.path


def cases(*names: str) -> list[TestCase]:
    return [case(name) for name in names]
