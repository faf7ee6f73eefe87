"""Whole workflows, run as GitHub would: several calls in one run, artifacts of others, and jobs that are run again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from action_files import ROOT
from github_artifacts import Artifacts
from github_runner import launcher_environment
from github_workflow import WorkflowRun

STUB = ROOT / "tests" / "support" / "workers" / "step_stub.py"
FLOWS = "org/dist-tests/.github/workflows"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """While it is there, the tests fail."""
    return tmp_path / "broken"


@pytest.fixture
def make_run(tmp_path: Path, broken: Path) -> Callable[[str], WorkflowRun]:
    """Makes runs in a consumer's repository. Plans and shards are made up; what joins them is the real command."""
    return lambda name: new_run(tmp_path / name, broken)


@pytest.fixture
def run(make_run: Callable[[str], WorkflowRun]) -> WorkflowRun:
    return make_run("run")


def new_run(folder: Path, broken: Path) -> WorkflowRun:
    real = f'PYTHONPATH="{ROOT / "entrypoint"}" exec "{sys.executable}" -m disttest "$@"'
    # On PATH it runs in place; what merges looks where the launcher's environment would be.
    seen = f'PYTHONPATH="{STUB.parents[1]}:{ROOT / "entrypoint"}"'
    put(folder / "bin", f'{seen} exec "{sys.executable}" "{STUB}" "$@"')
    launcher = launcher_environment(folder / "temp", ROOT)
    put(launcher / "bin", real)
    (launcher / "ready").touch()
    (folder / "checkout").mkdir()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GITHUB_", "DISTTEST_", "PYTEST_"))
    }
    environment |= {"PATH": f"{folder / 'bin'}:{environment['PATH']}", "STEP_STUB_BROKEN": str(broken)}
    return WorkflowRun(folder, folder / "checkout", environment)


def put(folder: Path, does: str) -> None:
    """Put a command called disttest into a folder."""
    folder.mkdir(parents=True)
    (folder / "disttest").write_text(f"#!/bin/sh\n{does}\n")
    (folder / "disttest").chmod(0o755)


def call(workflow: str, **inputs: Any) -> dict[str, Any]:
    return {"uses": f"{FLOWS}/{workflow}.yml@v1", "with": inputs}


POOL = {"pools": "small:2:2\n", "labels": "small=self-hosted", "device": "cpu"}


def test_calls_in_one_run_do_not_touch_each_others_artifacts(run: WorkflowRun, tmp_path: Path) -> None:
    """Two calls for one runner, one for a pool, and an artifact of somebody else under the old names."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "events.jsonl").write_text("not a shard of ours\n")
    run.artifacts.put("disttest-shard-9-attempt-1", foreign)
    done = run.attempt(
        {
            "jobs": {
                "one": call("single-runner", suite="tests/test_one.py"),
                "two": call("single-runner", suite="tests/test_two.py"),
                "pool": call("matrix", suite="tests", **POOL),
            }
        }
    )
    assert {name: job.result for name, job in done.items()} == dict.fromkeys(done, "success"), done
    assert {job.outputs["conclusion"] for job in done.values()} == {"success"}
    assert "2 shards, 2 passed" in done["pool"].log
    assert len({job.outputs["artifact"] for job in done.values()} & run.artifacts.names()) == 3


def test_a_plan_without_tests_is_a_success(run: WorkflowRun) -> None:
    done = run.attempt(
        {"jobs": {"pool": call("matrix", suite="tests", pools="gpu:8:1\n", **{"pytest-args": "-k nothing"})}}
    )
    assert (done["pool"].result, done["pool"].outputs["conclusion"]) == ("success", "success"), done[
        "pool"
    ].log


def test_failed_shards_and_then_the_reporter_run_again(run: WorkflowRun, broken: Path) -> None:
    workflow = yaml.safe_load((ROOT / "examples/matrix/.github/workflows/tests.yml").read_text())
    workflow["jobs"]["distributed"]["with"] |= POOL
    broken.touch()
    first = run.attempt(workflow)
    assert (first["distributed"].result, first["distributed"].outputs["conclusion"]) == ("failure", "failure")
    assert first["publish"].result == "success"

    broken.unlink()
    second = run.attempt(workflow, again={"distributed / shard (0)", "distributed / shard (1)"})
    assert second["distributed"].outputs["conclusion"] == "success", second["distributed"].log
    assert (second["distributed"].result, second["publish"].result) == ("success", "success")
    assert second["distributed"].outputs["artifact"] != first["distributed"].outputs["artifact"]

    names = run.artifacts.names()
    third = run.attempt(workflow, again={"publish"})
    assert third["publish"].result == "success", third["publish"].log
    assert third["distributed"].outputs == second["distributed"].outputs
    assert run.artifacts.names() == names
    assert len(run.published) == 3


def example(name: str, workflow: str = "tests") -> dict[str, Any]:
    return yaml.safe_load((ROOT / "examples" / name / ".github/workflows" / f"{workflow}.yml").read_text())


@pytest.mark.parametrize("name", ["single", "gpu", "matrix", "arc", "slurm", "forks"])
def test_the_example_of_each_common_case_runs_as_it_stands(run: WorkflowRun, name: str) -> None:
    done = run.attempt(example(name))
    assert {job.result for job in done.values()} <= {"success", "skipped"}, done
    assert done["distributed"].result == "success"
    assert len(run.artifacts.names()) == (4 if name == "matrix" else 1), run.artifacts.names()


@pytest.mark.parametrize("tests_fail", [False, True])
def test_results_of_a_fork_are_published_by_a_run_of_our_own(
    make_run: Callable[[str], WorkflowRun], broken: Path, tests_fail: bool
) -> None:
    """The code of a pull request runs without a right to write; what may write runs nothing of it."""
    if tests_fail:
        broken.touch()
    tests, publish = make_run("tests"), make_run("publish")
    done = tests.attempt(example("forks"))
    assert done["distributed"].result == ("failure" if tests_fail else "success")
    assert tests.published == []

    publish.others["7"] = tests.artifacts
    publish.event["workflow_run"] = {
        "id": "7", "event": "pull_request", "run_attempt": 1, "head_sha": "f" * 40, "conclusion": done["distributed"].result,
    }  # fmt: skip
    assert publish.attempt(example("forks", "publish"))["publish"].result == "success"
    assert publish.published == [{"commit": "f" * 40, "report_paths": "untrusted/junit.xml"}]

    publish.event["workflow_run"]["conclusion"] = "action_required"
    assert publish.attempt(example("forks", "publish"), again={"publish"})["publish"].result == "skipped"

    uses = [step.get("uses", "") for step in example("forks", "publish")["jobs"]["publish"]["steps"]]
    assert all(uses), "a script would run with this job's rights"
    assert not any("checkout" in one for one in uses)
    rights = [job["permissions"] for job in example("forks")["jobs"].values()]
    assert rights == [{"contents": "read"}]


def test_all_jobs_run_again_with_a_plan_of_their_own(run: WorkflowRun) -> None:
    workflow = {"jobs": {"pool": call("matrix", suite="tests", name="mine", **POOL)}}
    run.attempt(workflow)
    again = {"pool / plan"}
    done = run.attempt(workflow, again=again)
    assert done["pool"].outputs["artifact"] == "disttest.mine.plan-2.merged-2"
    assert "2 shards, 2 passed" in run.jobs["pool / merge"].log


@pytest.mark.parametrize("name", ["a.b", "a/b", "a b", "a*", "$(id)", "a" * 101])
def test_a_name_that_could_fit_anothers_pattern_is_refused(run: WorkflowRun, name: str) -> None:
    done = run.attempt({"jobs": {"pool": call("matrix", suite="tests", name=name, **POOL)}})
    assert done["pool"].result == "failure"
    assert "input name is not 1 to 100 letters, digits, - and _" in done["pool"].log
    assert run.artifacts.names() == set()


def test_a_name_is_taken_for_good(tmp_path: Path) -> None:
    """The rule that the names are made for."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "junit.xml").touch()
    artifacts = Artifacts(tmp_path / "artifacts")
    asked = {"name": "a", "path": "results"}
    assert artifacts.upload(tmp_path, asked).outcome == "success"
    assert "409 Conflict" in artifacts.upload(tmp_path, asked).log


def test_a_path_that_other_systems_cannot_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "test_x::y.log").touch()
    artifacts = Artifacts(tmp_path / "artifacts")
    assert (
        "files in artifact is not valid" in artifacts.upload(tmp_path, {"name": "a", "path": "results"}).log
    )
    assert artifacts.names() == set()
