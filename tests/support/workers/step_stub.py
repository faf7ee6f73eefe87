"""Stands in for ``disttest github-step`` where a workflow is run and not its tests: plans and runs two tests, at once.

Plans and results are as the real command leaves them, so that the real one can merge them. The tests fail while the
file exists that STEP_STUB_BROKEN names.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from planning_cases import case
from shard_runs import ShardRun

from disttest.extras.shards.shard_plan import (
    NO_OP_SHARD,
    decode_plan,
    encode_plan,
    find_shard,
    plan_equal_shards,
    render_matrix,
)
from disttest.model import Outcome
from disttest.planning.timings import Timings

TESTS = [case("one"), case("two")]


def given(name: str) -> str:
    return os.environ.get(f"DISTTEST_INPUT_{name}", "")


def plan() -> None:
    tests = [] if given("PYTEST_ARGS") == "-k nothing" else TESTS
    made = plan_equal_shards(tests, Timings(), shards=2, slots=2, revision=given("REVISION"))
    Path("plan.json").write_bytes(encode_plan(made))
    Path("matrix.json").write_text(json.dumps(render_matrix(made)))


def run() -> int:
    made = decode_plan(Path(given("PLAN")).read_bytes()) if given("PLAN") else None
    number = int(given("SHARD")) if made else None
    shard = find_shard(made, number) if made and number is not None else None
    if number == NO_OP_SHARD and given("DEVICE") == "cuda":
        return 6  # its runner has no GPU
    results = ShardRun(Path(given("RESULTS")), number, plan_id=made.plan_id if made else "")
    broken = Path(os.environ["STEP_STUB_BROKEN"]).exists()
    for test in TESTS:
        if made is None or (shard and test in shard.tests):
            results.run(test, Outcome.FAILED if broken else Outcome.PASSED)
    junit = results.finish(int(broken)) / "junit.xml"
    junit.write_text("<testsuites/>")
    with open(os.environ["GITHUB_OUTPUT"], "a", encoding="utf-8") as outputs:
        outputs.write(
            f"conclusion={'failure' if broken else 'success'}\ninfrastructure=false\njunit={junit}\n"
        )
    return int(broken)


if __name__ == "__main__":
    if sys.argv[1:] == ["cluster-clean"]:
        sys.exit(0)  # no scheduler has jobs of ours
    sys.exit(plan() if os.environ["DISTTEST_STEP_COMMAND"] == "plan" else run())
