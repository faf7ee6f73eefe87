"""Merge 100,000 test cases with 2 GB of rank logs: wall time and peak memory.

    python bench/merge.py                    the whole size (needs some 2.5 GB below --folder)
    python bench/merge.py --tests 10000 --log-bytes 1000

Writes the results of 8 shards as runs leave them (two ranks a test, one log each), then merges them in a process of
its own and prints what that took: once the merge itself (journal, logs, result in memory), once with all reports.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from disttest.model import Hardware, Outcome, RankEnd, RankRecord, TestCase, TestResult, WorldShape
from disttest.results.events import (
    RunFinished,
    RunStarted,
    TestCollected,
    TestFinished,
    WorldEnded,
    WorldStarted,
)
from disttest.results.journal import FILE_NAME, Journal

SHARDS = 8
RANKS = 2


def write_shard(folder: Path, shard: int, tests: int, log_bytes: int) -> None:
    folder.mkdir(parents=True)
    journal = Journal(folder / FILE_NAME)
    shape = WorldShape(size=RANKS, backend="gloo")
    text = ("a line of a rank's log, as long as lines of logs are\n" * (log_bytes // 52 + 1))[:log_bytes]
    journal.append(
        RunStarted(
            at_s=1e9,
            run_id=f"run-{shard}",
            argv=("disttest", "suite"),
            root="/repo",
            hardware=Hardware(cpus=16, gpus=("H100",) * 8),
            slots=8,
            disttest="0.1.0",
            shard=shard,
        )
    )
    for number in range(tests):
        name = f"test_number_{shard}_{number}"
        file = f"tests/distributed/test_module_{number // 50}.py"
        slug = f"test-module-{number // 50}-{name}-2xgloo"
        nodeid = f"{file}::TestClass::{name}[2xgloo]"
        case = TestCase(
            nodeid=nodeid,
            slug=slug,
            classname=f"tests.distributed.test_module_{number // 50}.TestClass",
            name=f"{name}[2xgloo]",
            file=file,
            line=number,
            suite="distributed",
            world=shape,
        )
        ranks = []
        for rank in range(RANKS):
            log = f"logs/{slug}/attempt-1/rank{rank}.log"
            path = folder / log
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            phases = {"setup": 0.01, "call": 1.5, "teardown": 0.01}
            ranks.append(
                RankRecord(
                    rank=rank,
                    end=RankEnd.REPORTED,
                    outcome=Outcome.PASSED,
                    log=log,
                    pid=7,
                    durations_s=phases,
                )
            )
        at_s, world_id = 1e9 + number, f"w{number}"
        journal.append(TestCollected(at_s=at_s, test=case))
        journal.append(
            WorldStarted(at_s=at_s, world_id=world_id, shape=shape, slots=("gpu:0", "gpu:1"), pid=1)
        )
        result = TestResult(
            nodeid=nodeid,
            outcome=Outcome.PASSED if number % 1000 else Outcome.FAILED,
            started_at_s=at_s,
            duration_s=1.5,
            message="" if number % 1000 else "rank 1 failed: AssertionError",
            world_id=world_id,
            ranks=tuple(ranks),
        )
        journal.append(TestFinished(at_s=at_s + 0.9, result=result))
        journal.append(WorldEnded(at_s=at_s + 1, world_id=world_id))
    journal.append(RunFinished(at_s=1e9 + tests, exit_code=1))
    journal.close()


def merge_here(folder: Path, *, reports: bool) -> None:
    from disttest.extras.shards.merging import merge
    from disttest.reports.write import write_reports

    into = folder / f"merged-{reports}"
    into.mkdir()
    started_s = time.perf_counter()
    run = merge([folder / "shards"], into)
    if reports:
        write_reports(run, into)
    took_s = time.perf_counter() - started_s
    cpu_s = time.process_time()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = "with reports" if reports else "merge alone"
    print(
        f"{what}: {len(run.tests)} tests of {len(run.shards)} shards in {took_s:.1f} s ({cpu_s:.1f} s of CPU), "
        f"peak {peak_mb:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tests", type=int, default=100_000)
    parser.add_argument("--log-bytes", type=int, default=10_000, help="of each rank's log")
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--no-reports", action="store_true", help="measure the merge alone")
    parser.add_argument("--merge", choices=["alone", "reports"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.merge:
        merge_here(arguments.folder, reports=arguments.merge == "reports")
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-merge-", dir=arguments.folder))
    try:
        for shard in range(1, SHARDS + 1):
            write_shard(folder / "shards" / str(shard), shard, arguments.tests // SHARDS, arguments.log_bytes)
        for what in ("alone",) if arguments.no_reports else ("alone", "reports"):
            subprocess.run([sys.executable, __file__, "--folder", folder, "--merge", what], check=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
