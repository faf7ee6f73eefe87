"""The table of docs/action.md: how a run can end, and what the step publishes then.

Each row is brought about with the real engine and the action on an emulated runner.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from engine import BASE, ROOT, Engine, own_engine
from github_runner import ActionResult
from launched_job import Job, put_on_path
from launching import copy_image, ours
from sample_runs import write_journal

PAGE = ROOT / "docs" / "action.md"
HANGS = """
import pathlib, time, pytest

@pytest.mark.world_size(1)
def test_it(world):
    pathlib.Path("ready").touch()
    time.sleep(300)
"""
TWO_RANKS = HANGS.replace("world_size(1)", "world_size(2)")
DIES = "import os\ndef pytest_sessionstart(session):\n    os.kill(os.getpid(), 9)\n"
WRITES_A_JOURNAL = "import pathlib, shutil, time\nshutil.copy('so-far.jsonl', 'results/events.jsonl')\n"
WAITS = f"{WRITES_A_JOURNAL}pathlib.Path('ready').touch()\ntime.sleep(300)\n"
TAKES_MEMORY = f"{WRITES_A_JOURNAL}held = []\nwhile True:\n    held.append(b'x' * (8 << 20))\n"


class Row(NamedTuple):
    """A row of the table."""

    event: str
    exit_code: int
    conclusion: str
    infrastructure: str
    reports: str


def read_rows() -> Iterator[Row]:
    table = re.search(r"<!-- <endings> -->\n(.*?)<!-- </endings> -->", PAGE.read_text(), re.DOTALL)
    assert table is not None
    for line in table[1].splitlines()[2:]:
        event, code, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        yield Row(event, int(code), *rest)


class Stage:
    """A job with the means of all scenes."""

    def __init__(self, job: Job, image: str, folder: Path) -> None:
        self.job, self.image, self.folder = job, image, folder
        self.ready = job.workspace / "ready"

    def run(self, test: str, **inputs: object) -> ActionResult:
        """A test file in the real image."""
        (self.job.workspace / "test_it.py").write_text(test)
        return self.job.run(**{"image": self.image, "suite": "test_it.py", "results": "results", **inputs})

    def probe(self, program: str, **inputs: object) -> ActionResult:
        """A program in place of the run inside."""
        write_journal(self.job.workspace / "so-far.jsonl")
        return self.job.run(**{"suite": self.job.script(program), "results": "results", **inputs})

    def once_ready(self, act: Callable[[], object]) -> Callable[[], bool]:
        """Does something once when the test runs, and cancels nothing."""
        left = [act]

        def ask() -> bool:
            if left and self.ready.exists():
                left.pop()()
            return False

        return ask

    def pulls(self) -> bool:
        return any("pulling" in log.read_text() for log in self.job.runner.commands.glob("log-*"))


def engine_stops(stage: Stage) -> ActionResult:
    with contextlib.ExitStack() as stopping:
        doomed = stopping.enter_context(own_engine(stage.folder / "data"))
        copy_image(stage.job.image, stage.job.engine, doomed, stage.folder)
        stage.job.runner.environment["DOCKER_HOST"] = doomed.host
        return stage.probe(WAITS, cancel_when=stage.once_ready(stopping.close))


def engine_is_killed(stage: Stage) -> ActionResult:
    """Its container runs on, until the scene is over."""
    with own_engine(stage.folder / "data") as doomed:
        daemon = int(Path(doomed.host.removeprefix("unix://")).with_name("pid").read_text())
        copy_image(stage.job.image, stage.job.engine, doomed, stage.folder)
        stage.job.runner.environment["DOCKER_HOST"] = doomed.host
        return stage.probe(WAITS, cancel_when=stage.once_ready(lambda: os.kill(daemon, signal.SIGKILL)))


def no_engine(stage: Stage) -> ActionResult:
    stage.job.runner.environment["DOCKER_HOST"] = f"unix://{stage.folder}/none.sock"
    return stage.probe("")


def no_scheduler(stage: Stage) -> ActionResult:
    real = f'PYTHONPATH="{ROOT / "entrypoint"}" exec "{sys.executable}" -m disttest "$@"'
    put_on_path(stage.job, stage.folder / "bin", real)
    (stage.folder / "bin" / "srun").write_text("#!/bin/sh\necho no controller >&2\nexit 1\n")
    (stage.folder / "bin" / "srun").chmod(0o755)
    return stage.run("def test_it(): pass\n", image="", pull="", launcher="slurm")


def no_project(stage: Stage) -> ActionResult:
    (stage.job.workspace / "pyproject.toml").write_text('[build-system]\nrequires = ["no/such"]\n')
    return stage.probe("", project=".")


def cancelled_during_setup(stage: Stage) -> ActionResult:
    (stage.job.workspace / "set_up.sh").write_text("touch ready\nsleep 300\n")
    return stage.run("def test_it(): pass\n", setup="set_up.sh", cancel_when=stage.ready.exists)


def setup_fails(stage: Stage) -> ActionResult:
    (stage.job.workspace / "set_up.sh").write_text("exit 3\n")
    return stage.run("def test_it(): pass\n", setup="set_up.sh")


def pytest_dies(stage: Stage) -> ActionResult:
    (stage.job.workspace / "conftest.py").write_text(DIES)
    return stage.run("def test_it(): pass\n")


SCENES: dict[str, Callable[[Stage], ActionResult]] = {
    "all tests pass": lambda stage: stage.run("def test_it(): pass\n"),
    "a test fails": lambda stage: stage.run("def test_it(): assert False\n"),
    "a file cannot be collected": lambda stage: stage.run("import nothing_of_that_name\n"),
    "the pytest process dies": pytest_dies,
    "the container runs out of memory": lambda stage: stage.probe(TAKES_MEMORY, memory="64m"),
    "an input makes no sense": lambda stage: stage.probe("", shm_size="much"),
    "the image is not there, and `pull` is never": lambda stage: stage.probe("", image="no/such:1"),
    "the image has no disttest": lambda stage: stage.probe("", image=BASE),
    "the network does not exist": lambda stage: stage.probe("", network="no-such"),
    "the requirements or the project cannot be installed": no_project,
    "no test is found": lambda stage: stage.run(""),
    "the GPUs that were asked for are missing": lambda stage: stage.probe("", gpus="2"),
    "the machine is too broken to start ranks": lambda stage: stage.run(TWO_RANKS, pids_limit=7),
    "no container engine answers": no_engine,
    "the engine stops in the middle of the run": engine_stops,
    "the engine is killed in the middle of the run": engine_is_killed,
    "the scheduler cannot be reached": no_scheduler,
    "the `setup` script fails": setup_fails,
    "the `deadline` passes": lambda stage: stage.run(HANGS, deadline=20),
    "the `time-limit` of the container passes": lambda stage: stage.run(HANGS, time_limit=30),
    "the job is cancelled while tests run": lambda stage: stage.run(HANGS, cancel_when=stage.ready.exists),
    "the job is cancelled during `setup`": cancelled_during_setup,
    "the job is cancelled while the image is pulled": lambda stage: stage.probe(
        "", image="registry.invalid/no/such:1", pull="missing", cancel_when=stage.pulls
    ),
    "the container is killed from outside": lambda stage: stage.run(
        HANGS, cancel_when=stage.once_ready(lambda: ours(stage.job.engine)[0].kill())
    ),
}


def test_each_row_has_its_scene() -> None:
    assert [row.event for row in read_rows()] == list(SCENES)


@pytest.mark.parametrize("row", list(read_rows()), ids=lambda row: row.event.replace(" ", "-"))
def test_an_ending_is_what_the_page_says(
    row: Row, job: Job, image: str, engine: Engine, tmp_path: Path
) -> None:
    done = SCENES[row.event](Stage(job, image, tmp_path))

    outputs = {name: done.outputs[name] for name in ("exit-code", "conclusion", "infrastructure")}
    assert (done.exit_code, outputs) == (
        row.exit_code,
        {
            "exit-code": str(row.exit_code),
            "conclusion": row.conclusion,
            "infrastructure": row.infrastructure,
        },
    ), done.log
    assert (done.outputs["junit"] != "") == (row.reports == "yes"), (done.outputs, done.log)
    if row.reports == "yes":
        assert Path(done.outputs["junit"]).exists()
        assert json.loads(Path(done.outputs["report"]).read_text())["exit_code"] == row.exit_code
        assert done.summary
    assert ours(engine) == []
