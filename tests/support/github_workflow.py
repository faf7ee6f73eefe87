"""Runs whole workflows as GitHub would: jobs and what they need, matrices, reusable workflows, outputs, artifacts, attempts.

Anything that a file asks for and this does not know is an error, never ignored.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from action_files import ROOT
from github_artifacts import Artifacts
from github_expressions import expand, expand_text, holds
from github_runner import Runner, StepResult

OWN = "org/dist-tests"
JOB_KEYS = {
    "name", "needs", "if", "runs-on", "timeout-minutes", "permissions", "outputs", "strategy", "steps", "uses", "with",
    "container",  # what it would have, disttest on PATH, the environment of the run has
    "defaults",
}  # fmt: skip
DEFAULTS = {"string": "", "number": 0, "boolean": False}


@dataclass
class JobResult:
    """What came of a job, or of a workflow that one calls."""

    result: str
    outputs: dict[str, Any] = field(default_factory=dict)
    log: str = ""


class WorkflowRun:
    """One run of a workflow, of one attempt or more."""

    def __init__(self, folder: Path, checkout: Path, environment: Mapping[str, str]) -> None:
        self.artifacts = Artifacts(folder / "artifacts")
        self.jobs: dict[str, JobResult] = {}
        """By name, as ``caller / called``, and ``job (N)`` for entry N of a matrix."""
        self.event: dict[str, Any] = {}
        """What has happened, as GITHUB_EVENT_PATH tells it."""
        self.others: dict[str, Artifacts] = {}
        """By run id: the artifacts of other runs, which a token that may read actions gives access to."""
        self.published: list[dict[str, str]] = []
        """What the reporter was given."""
        self._folder = folder
        self._checkout = checkout
        self._environment = dict(environment)
        self._attempt = 0
        self._ran: set[str] = set()
        self._again: Collection[str] = ()

    def attempt(self, workflow: Mapping[str, Any], *, again: Collection[str] = ()) -> dict[str, JobResult]:
        """Run it; or once more, the jobs of ``again`` and those that need them, with what is left of the others."""
        self._attempt += 1
        self._again, self._ran = again, set()
        return self._run_jobs(workflow["jobs"], {}, "")

    def _run_jobs(
        self, jobs: Mapping[str, Any], inputs: Mapping[str, Any], prefix: str
    ) -> dict[str, JobResult]:
        done: dict[str, JobResult] = {}
        while len(done) < len(jobs):
            ready = [
                one for one in jobs if one not in done and all(need in done for need in needs_of(jobs[one]))
            ]
            assert ready, f"jobs wait for each other: {set(jobs) - set(done)}"
            for one in ready:
                done[one] = self._run_job(one, jobs[one], inputs, done, prefix)
        return done

    def _run_job(
        self,
        name: str,
        job: Mapping[str, Any],
        inputs: Mapping[str, Any],
        done: Mapping[str, JobResult],
        prefix: str,
    ) -> JobResult:
        assert set(job) <= JOB_KEYS, f"not understood: {set(job) - JOB_KEYS}"
        needed = {need: done[need] for need in needs_of(job)}
        contexts: dict[str, Any] = {
            "github": {
                "run_attempt": str(self._attempt), "run_id": "7", "sha": "a" * 40, "job": name,
                "event_name": "push", "server_url": "https://github.com", "repository": "me/mine",
                "event": self.event, "token": "of-this-job",
            },
            "inputs": dict(inputs),
            "needs": {need: {"result": one.result, "outputs": one.outputs} for need, one in needed.items()},
        }  # fmt: skip
        status = "success" if all(one.result == "success" for one in needed.values()) else "failure"
        full = prefix + name
        renewed = any(prefix + need in self._ran for need in needed)
        if not holds(job.get("if", "success()"), contexts, status=status):
            return JobResult(result="skipped")
        if "uses" in job:
            result = self._call(full, job, contexts, renewed=renewed)
        else:
            result = self._run_matrix(full, job, contexts, renewed=renewed)
        self.jobs[full] = result
        return result

    def _call(
        self, full: str, job: Mapping[str, Any], contexts: dict[str, Any], *, renewed: bool
    ) -> JobResult:
        """Run a reusable workflow of this repository."""
        path, _, reference = job["uses"].partition("@")
        assert path.startswith(f"{OWN}/.github/workflows/")
        assert reference == "v1"
        called = yaml.safe_load((ROOT / path.removeprefix(f"{OWN}/")).read_text())
        declaration = called[True]["workflow_call"]  # YAML 1.1 reads `on` as true
        inputs = call_inputs(declaration["inputs"], expand(job.get("with", {}), contexts))
        inner = f"{full} / "
        if renewed:
            self._again = {*self._again, *(inner + one for one in called["jobs"])}
        done = self._run_jobs(called["jobs"], inputs, inner)
        if any(name.startswith(inner) for name in self._ran):
            self._ran.add(full)
        known = {"jobs": {name: {"result": one.result, "outputs": one.outputs} for name, one in done.items()}}
        outputs = {name: expand(one["value"], known) for name, one in declaration.get("outputs", {}).items()}
        return JobResult(result=worst(done), outputs=outputs, log="".join(one.log for one in done.values()))

    def _run_matrix(
        self, full: str, job: Mapping[str, Any], contexts: dict[str, Any], *, renewed: bool
    ) -> JobResult:
        if "strategy" not in job:
            return self._run_or_keep(full, job, contexts, renewed=renewed)
        entries = expand(job["strategy"]["matrix"], contexts)["include"]
        done = {}
        for number, entry in enumerate(entries):
            one = f"{full} ({number})"
            done[one] = self._run_or_keep(one, job, {**contexts, "matrix": entry}, renewed=renewed)
        if self._ran & set(done):
            self._ran.add(full)
        return JobResult(result=worst(done), log="".join(one.log for one in done.values()))

    def _run_or_keep(
        self, full: str, job: Mapping[str, Any], contexts: dict[str, Any], *, renewed: bool
    ) -> JobResult:
        if self._attempt > 1 and not renewed and full not in self._again:
            return self.jobs[full]
        self._ran.add(full)
        workspace = self._folder / "work" / f"{self._attempt}-{len(self._ran)}"
        workspace.mkdir(parents=True)
        runner = Runner(
            workspace.with_suffix(".runner"), workspace, self._environment, temp=self._folder / "temp"
        )
        runner.actions = _StandIns(self, runner, job.get("permissions", {}))
        contexts["steps"] = {}
        steps = runner.run_steps(job["steps"], contexts)
        failed = any(one.outcome == "failure" for one in steps.values())
        self.jobs[full] = JobResult(
            result="failure" if failed else "success",
            outputs={name: expand_text(one, contexts) for name, one in job.get("outputs", {}).items()},
            log="".join(one.log for one in steps.values()),
        )
        return self.jobs[full]

    def check_out(self, workspace: Path) -> StepResult:
        shutil.copytree(self._checkout, workspace, dirs_exist_ok=True)
        return StepResult(outcome="success")

    def download(self, workspace: Path, inputs: dict[str, str], permissions: Mapping[str, str]) -> StepResult:
        """From this run, or from the one that is named."""
        if "run-id" not in inputs:
            return self.artifacts.download(workspace, inputs)
        asked = dict(inputs)
        run_id, token = asked.pop("run-id"), asked.pop("github-token")
        assert (token, permissions.get("actions")) == ("of-this-job", "read")
        return self.others[run_id].download(workspace, asked)

    def publish(self, inputs: dict[str, str]) -> StepResult:
        self.published.append(inputs)
        return StepResult(outcome="success")


class _StandIns(dict[str, Any]):
    """What stands in for the actions that a job's steps use; this repository's own are the real ones."""

    def __init__(self, run: WorkflowRun, runner: Runner, permissions: Mapping[str, str]) -> None:
        super().__init__(
            {
                "actions/checkout": lambda inputs: run.check_out(runner.workspace),
                "actions/upload-artifact": lambda inputs: run.artifacts.upload(runner.workspace, inputs),
                "actions/download-artifact": lambda inputs: run.download(
                    runner.workspace, inputs, permissions
                ),
                "mikepenz/action-junit-report": run.publish,
            }
        )
        for file in (ROOT / "action.yml", *ROOT.glob("actions/*/action.yml")):
            folder = file.parent
            name = f"{OWN}/{folder.relative_to(ROOT)}".removesuffix("/.")
            self[name] = lambda inputs, folder=folder: own_action(runner, folder, inputs)


def own_action(runner: Runner, folder: Path, inputs: dict[str, str]) -> StepResult:
    done = runner.run_action(folder, inputs)
    return StepResult(outcome=done.conclusion, outputs=done.outputs, log=done.log, exit_code=done.exit_code)


def needs_of(job: Mapping[str, Any]) -> list[str]:
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else list(needs)


def worst(done: Mapping[str, JobResult]) -> str:
    results = {one.result for one in done.values()}
    return "failure" if "failure" in results else "skipped" if results == {"skipped"} else "success"


def call_inputs(declared: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a reusable workflow, with their defaults."""
    assert set(given) <= set(declared), f"unknown inputs: {set(given) - set(declared)}"
    missing = {name for name, one in declared.items() if one.get("required")} - set(given)
    assert not missing, f"required inputs: {missing}"
    return {
        name: given.get(name, one.get("default", DEFAULTS[one["type"]])) for name, one in declared.items()
    }
