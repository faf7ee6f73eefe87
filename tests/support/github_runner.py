"""A small runner of GitHub's actions: does with a composite action's steps what GitHub's runner does.

Expressions (by GitHub's own package), ``env``, ``bash --noprofile --norc -e -o pipefail FILE``, ``if``, the files
behind GITHUB_OUTPUT, GITHUB_ENV, GITHUB_PATH and GITHUB_STEP_SUMMARY, and a cancellation that signals one process:
SIGINT, SIGTERM after 7.5 s, SIGKILL after 2.5 s more. Anything else that a file asks for is an error, never ignored.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from github_expressions import expand_text, holds

BASH = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail")
SIGTERM_AFTER_S, SIGKILL_AFTER_S = 7.5, 2.5
STEP_KEYS = {"id", "if", "name", "shell", "env", "run", "uses", "with", "working-directory"}


def launcher_environment(temp: Path, action: Path) -> Path:
    """The folder below RUNNER_TEMP in which actions/environment.sh keeps the launcher of an action."""
    key = f"{action}\n".encode() + (action / "requirements" / "launch.lock").read_bytes()
    return temp / f"disttest-launch-{hashlib.sha256(key).hexdigest()[:16]}"


@dataclass
class StepResult:
    """What came of a step."""

    outcome: str
    outputs: dict[str, str] = field(default_factory=dict)
    log: str = ""
    exit_code: int = 0


@dataclass
class ActionResult:
    """What came of an action."""

    outputs: dict[str, str]
    steps: dict[str, StepResult]
    exit_code: int
    log: str
    summary: str

    @property
    def conclusion(self) -> str:
        return "success" if self.exit_code == 0 else "failure"


def read_file_commands(text: str) -> dict[str, str]:
    """The content of a GITHUB_OUTPUT or GITHUB_ENV file: ``name=value`` and heredocs."""
    values, lines = {}, iter(text.splitlines())
    for line in lines:
        if not line:
            continue
        heredoc = re.match(r"^([^=]+?)<<(.+)$", line)
        if heredoc and "=" not in line.split("<<")[0]:
            body = []
            for inner in lines:
                if inner == heredoc[2]:
                    break
                body.append(inner)
            else:
                raise AssertionError(f"delimiter {heredoc[2]} is missing")
            values[heredoc[1]] = "\n".join(body)
        else:
            name, equals, value = line.partition("=")
            assert equals, f"not a file command: {line!r}"
            values[name] = value
    return values


class Runner:
    """Runs one composite action after the other in a workspace, as one job."""

    def __init__(
        self, folder: Path, workspace: Path, environment: Mapping[str, str], *, temp: Path | None = None
    ) -> None:
        self.temp = temp or folder / "runner-temp"
        """RUNNER_TEMP: what a step leaves there, a later step of the job finds."""
        self.commands = folder / "_runner_file_commands"
        for made in (self.temp, self.commands):
            made.mkdir(parents=True, exist_ok=True)
        self.workspace = workspace
        self.actions: dict[str, Callable[[dict[str, str]], StepResult]] = {}
        """What stands in for the actions that a step uses, which are not to be had without a network."""
        self.environment = dict(environment)
        self.path: list[str] = []
        self.running: subprocess.Popen[bytes] | None = None
        self.count = 0

    def run_action(
        self, folder: Path, inputs: Mapping[str, str], *, cancel_when: Callable[[], bool] | None = None
    ) -> ActionResult:
        """Run the composite action in a folder.

        ``cancel_when`` is asked while a step runs; once it is true the job is cancelled. Steps that run ``always()``
        run after that, too.
        """
        action = yaml.safe_load((folder / "action.yml").read_text())
        assert action["runs"]["using"] == "composite"
        declared = {name: str(one.get("default", "")) for name, one in (action.get("inputs") or {}).items()}
        unknown = set(inputs) - set(declared)
        assert not unknown, f"GitHub warns of unknown inputs: {unknown}"
        contexts: dict[str, Any] = {"inputs": {**declared, **inputs}, "steps": {}}
        steps = self.run_steps(action["runs"]["steps"], contexts, folder, cancel_when=cancel_when)
        exit_code = next((one.exit_code for one in steps.values() if one.outcome == "failure"), 0)
        log = "".join(one.log for one in steps.values())
        outputs = {
            name: expand_text(one["value"], contexts) for name, one in (action.get("outputs") or {}).items()
        }
        summary = "".join(file.read_text() for file in sorted(self.commands.glob("summary_*")))
        return ActionResult(outputs=outputs, steps=steps, exit_code=exit_code, log=log, summary=summary)

    def run_steps(
        self,
        steps: Sequence[Mapping[str, Any]],
        contexts: dict[str, Any],
        action: Path | None = None,
        *,
        cancel_when: Callable[[], bool] | None = None,
    ) -> dict[str, StepResult]:
        """Run the steps of an action or a job; their outputs go into ``contexts``."""
        results: dict[str, StepResult] = {}
        failed = False
        for number, step in enumerate(steps):
            name = step.get("id", f"step-{number}")
            status = "failure" if failed else "success"
            result = self._step(step, contexts, action, status, None if failed else cancel_when)
            results[name] = result
            contexts["steps"][name] = {"outputs": result.outputs, "outcome": result.outcome}
            failed = failed or result.outcome == "failure"
        return results

    def run_docker_action(
        self, folder: Path, inputs: Mapping[str, str], *, docker: Sequence[str], image: str
    ) -> ActionResult:
        """Run the Docker action in a folder, from ``image`` in place of the one that it names (no registry here)."""
        action = yaml.safe_load((folder / "action.yml").read_text())
        runs = action["runs"]
        assert runs["using"] == "docker"
        assert runs["image"].startswith("docker://")
        assert set(runs) <= {"using", "image", "args", "env"}, f"not understood: {set(runs)}"
        declared = {name: str(one.get("default", "")) for name, one in (action.get("inputs") or {}).items()}
        contexts: dict[str, Any] = {"inputs": {**declared, **inputs}}
        env = {name: expand_text(value, contexts) for name, value in (runs.get("env") or {}).items()}
        env |= {f"INPUT_{name.upper()}": value for name, value in contexts["inputs"].items()}
        files = self._files()
        env |= {name: f"/github/file_commands/{file.name}" for name, file in files.items()}
        env |= {
            "HOME": "/github/home",
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "RUNNER_TEMP": "/github/runner_temp",
        }
        env |= {"GITHUB_WORKSPACE": "/github/workspace"}
        home = self.temp / "_github_home"
        home.mkdir(exist_ok=True)
        mounts = {
            home: "/github/home",
            self.commands: "/github/file_commands",
            self.workspace: "/github/workspace",
        }
        argv = [*docker, "run", "--rm", "--workdir=/github/workspace"]
        argv += [f"--volume={here}:{there}" for here, there in mounts.items()]
        argv += [
            word for name in env for word in ("--env", name)
        ]  # values by the environment, as the runner does
        argv += [image, *(expand_text(word, contexts) for word in runs.get("args", []))]
        done = subprocess.run(
            argv,
            env={**self.environment, **env, "PATH": self.environment["PATH"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=300,
            check=False,
        )
        outputs = read_file_commands(files["GITHUB_OUTPUT"].read_text())
        return ActionResult(
            outputs=outputs,
            steps={},
            exit_code=done.returncode,
            log=done.stdout,
            summary=files["GITHUB_STEP_SUMMARY"].read_text(),
        )

    def _step(
        self,
        step: Mapping[str, Any],
        contexts: Mapping[str, Any],
        action: Path | None,
        status: str,
        cancel_when: Callable[[], bool] | None,
    ) -> StepResult:
        assert set(step) <= STEP_KEYS, f"not understood: {set(step) - STEP_KEYS}"
        if not holds(step.get("if", "success()"), contexts, status=status):
            return StepResult(outcome="skipped")
        if "uses" in step:
            return self._use(step, contexts)
        assert action is None or step["shell"] == "bash", "composite steps have to name their shell"
        files = self._files()
        env = {name: expand_text(value, contexts) for name, value in (step.get("env") or {}).items()}
        script = self.commands / f"script-{self.count}.sh"
        script.write_text(expand_text(step["run"], contexts))
        log = self.commands / f"log-{self.count}"
        exit_code = self._execute(script, self._environment(env, files, action), log, cancel_when)
        outputs = read_file_commands(files["GITHUB_OUTPUT"].read_text())
        self.environment |= read_file_commands(files["GITHUB_ENV"].read_text())
        self.path = files["GITHUB_PATH"].read_text().split() + self.path
        outcome = "success" if exit_code == 0 else "failure"
        return StepResult(
            outcome=outcome, outputs=outputs, log=log.read_text(errors="replace"), exit_code=exit_code
        )

    def _use(self, step: Mapping[str, Any], contexts: Mapping[str, Any]) -> StepResult:
        """Ask what stands in for an action: there is no network to fetch it from."""
        stand_in = self.actions.get(step["uses"].split("@")[0])
        assert stand_in, f"nothing stands in for {step['uses']}"
        return stand_in({name: expand_text(value, contexts) for name, value in step.get("with", {}).items()})

    def _files(self) -> dict[str, Path]:
        self.count += 1
        names = {
            "GITHUB_OUTPUT": "output", "GITHUB_ENV": "env", "GITHUB_PATH": "path",
            "GITHUB_STEP_SUMMARY": "summary",
        }  # fmt: skip
        files = {name: self.commands / f"{kind}_{self.count:03}" for name, kind in names.items()}
        owner = self.workspace.stat()
        for file in files.values():
            file.touch()
            # The runner's own user owns the workspace and these files alike.
            if os.getuid() == 0:
                os.chown(file, owner.st_uid, owner.st_gid)
        return files

    def _environment(
        self, env: Mapping[str, str], files: Mapping[str, Path], action: Path | None
    ) -> dict[str, str]:
        path = ":".join([*self.path, self.environment["PATH"]])
        return {
            **self.environment,
            "PATH": path,
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.workspace),
            **({"GITHUB_ACTION_PATH": str(action)} if action else {}),
            "RUNNER_TEMP": str(self.temp),
            **{name: str(file) for name, file in files.items()},
            **env,
        }

    def _execute(
        self, script: Path, env: dict[str, str], log: Path, cancel_when: Callable[[], bool] | None
    ) -> int:
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*BASH, str(script)],
                cwd=self.workspace,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while True:
            try:
                return process.wait(0.1)
            except subprocess.TimeoutExpired:
                if cancel_when is not None and cancel_when():
                    return self._cancel(process)

    @staticmethod
    def _cancel(process: subprocess.Popen[bytes]) -> int:
        for signum, grace_s in ((signal.SIGINT, SIGTERM_AFTER_S), (signal.SIGTERM, SIGKILL_AFTER_S)):
            process.send_signal(signum)
            try:
                return process.wait(grace_s)
            except subprocess.TimeoutExpired:
                continue
        process.kill()
        return process.wait()
