"""Two runs and one results directory; directories that are removed and taken in the middle of a run."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lab import Ended, Lab
from thorough import is_wanted

from disttest.host.proc import process_state
from disttest.model import Outcome
from hostile import Trial

WAITS = """
    import os, pathlib, time, pytest

    @pytest.mark.world_size(2)
    def test_waits(world):
        print("said by", os.environ["RUN"])
        pathlib.Path(f"begun-{os.environ['RUN']}").touch()
        while not pathlib.Path(f"go-{os.environ['RUN']}").exists():
            time.sleep(0.01)

    @pytest.mark.world_size(2)
    def test_after(world):
        print("said by", os.environ["RUN"])
"""
ORDINARY = """
    import os
    def test_ordinary():
        assert os.environ["RUN"]
"""
LIMIT_S = 120.0


def wait_until(holds: Callable[[], object]) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < limit_s, "waited in vain"
        time.sleep(0.01)


@contextlib.contextmanager
def waiting_run(lab: Lab, *arguments: str, name: str = "A") -> Iterator[subprocess.Popen[str]]:
    """A run in the middle of its first test; :func:`let_go` ends that."""
    lab.write(test_waits=WAITS)
    process = lab.start("test_waits.py", *arguments, RUN=name)
    try:
        wait_until(lambda: (lab.folder / f"begun-{name}").exists() or process.poll() is not None)
        yield process
    finally:
        process.kill()
        process.communicate()


def let_go(lab: Lab, process: subprocess.Popen[str], *, name: str = "A", results: str = "results") -> Ended:
    """Let a waiting run go on; how it ended."""
    (lab.folder / f"go-{name}").touch()
    output, _ = process.communicate(timeout=LIMIT_S)
    return Ended(process.returncode, output, lab.folder / results)


def check_whole(ended: Ended, name: str) -> None:
    """The run's reports and logs are there, and nothing of another run's."""
    assert ended.exit_code == 0, ended.output
    assert "Traceback" not in ended.output, ended.output
    assert [Outcome.PASSED] * 2 == [test.final.outcome for test in ended.run.tests], ended.output
    assert ended.run.exit_code == 0, "the journal has no end"
    assert not any("not an event" in note for note in ended.run.notes), ended.run.notes
    assert len(list(ended.junit().iter("testcase"))) == 2
    for report in ("results.json", "summary.md", "report.html"):
        assert (ended.results / report).exists(), report
    assert ended.log("test_after", 1).strip() == f"said by {name}"


def _two_runs(lab: Lab) -> None:
    with waiting_run(lab) as first:
        (lab.folder / "go-B").touch()
        second = lab.run("test_waits.py", RUN="B")
        check_whole(Ended(second.exit_code, second.output, lab.folder / "results-2"), "B")
        assert (
            f"disttest: results is in use by another run (pid {first.pid}): this run writes into results-2"
            in second.output
        ), second.output
        assert "disttest: reports and logs in results-2" in second.output
        check_whole(let_go(lab, first), "A")


def _outputs(lab: Lab) -> None:
    with waiting_run(lab) as first:
        lab.write(test_ordinary=ORDINARY)
        output = lab.folder / "github_output"
        second = lab.run("test_ordinary.py", RUN="B", GITHUB_OUTPUT=str(output), GITHUB_ACTIONS="true")
        assert second.exit_code == 0, second.output
        told = dict(re.findall(r"^(\w+)<<.*\n(.*)\n", output.read_text(), re.MULTILINE))
        assert told["results"] == str(lab.folder / "results-2"), told
        assert Path(told["junit"]).read_text().count("<testcase") == 1
        check_whole(let_go(lab, first), "A")


def _named(lab: Lab) -> None:
    """Under the command and under plain pytest, and by a rewrite of the reports in the middle."""
    with waiting_run(lab) as first:
        lab.write(test_ordinary=ORDINARY)
        (lab.folder / "shards").mkdir()
        said = f"results is in use by another run (pid {first.pid}): wait until it has ended, or choose"
        for ended in (
            lab.run("test_ordinary.py", "--results", "results", RUN="B"),
            lab.pytest("test_waits.py", RUN="B"),
            lab.run("report", "results"),
            lab.run("merge", "shards", "--results", "results"),
        ):
            assert ended.exit_code == 4, ended.output
            assert said in ended.output, ended.output
            assert "Traceback" not in ended.output, ended.output
        check_whole(let_go(lab, first), "A")


def _many_at_once(lab: Lab) -> None:
    lab.write(test_ordinary=ORDINARY)
    lab.run("test_ordinary.py", RUN="earlier")
    # Those that begin late move the results of those that have ended.
    count = 10 if is_wanted() else 4
    runs = [
        lab.start("test_ordinary.py", "--keep-results", "all", RUN=str(number)) for number in range(count)
    ]
    for output, code in [(run.communicate(timeout=LIMIT_S)[0], run.returncode) for run in runs]:
        assert code == 0, output
        assert "Traceback" not in output, output
    journals = list(lab.folder.glob("results*/events.jsonl"))
    assert len(journals) == count + 1, "results were lost"
    for journal in journals:
        ended = Ended(0, "", journal.parent)
        assert [Outcome.PASSED] == [test.final.outcome for test in ended.run.tests]
        assert ended.run.exit_code == 0
        assert len(list(ended.junit().iter("testcase"))) == 1


def _pytests_at_once(lab: Lab) -> None:
    """Those that do not get the directory say so, and the one that does loses nothing."""
    lab.write(test_waits=WAITS)
    command = ("-q", "--disttest-results=results", "test_waits.py")
    runs = [lab.start_pytest(*command, RUN=str(number)) for number in range(3 if is_wanted() else 2)]
    wait_until(lambda: list(lab.folder.glob("begun-*")))
    (begun,) = lab.folder.glob("begun-*")
    winner = int(begun.name.removeprefix("begun-"))
    for number, run in enumerate(runs):
        if number != winner:
            output, _ = run.communicate(timeout=LIMIT_S)
            assert run.returncode == 4, output
            assert f"is in use by another run (pid {runs[winner].pid})" in output, output
    ended = let_go(lab, runs[winner], name=str(winner))
    check_whole(ended, str(winner))


def _removed_and_taken(lab: Lab) -> None:
    with waiting_run(lab) as first:
        shutil.rmtree(lab.folder / "results")
        with waiting_run(lab, name="B") as second:
            mine = f"results-{first.pid}"
            ended = let_go(lab, first, results=mine)
            check_whole(ended, "A")
            assert f"disttest: reports and logs in {mine}" in ended.output, ended.output
            assert any(f"journal and reports are in {lab.folder / mine}" in note for note in ended.run.notes)
            check_whole(let_go(lab, second, name="B"), "B")


def _became_a_file(lab: Lab) -> None:
    with waiting_run(lab) as first:
        shutil.rmtree(lab.folder / "results")
        (lab.folder / "results").write_text("not yours")
        check_whole(let_go(lab, first, results=f"results-{first.pid}"), "A")
    assert (lab.folder / "results").read_text() == "not yours"


def _killed(lab: Lab) -> None:
    with waiting_run(lab) as first:
        os.kill(first.pid, signal.SIGKILL)
        (lab.folder / "go-B").touch()
        check_whole(lab.run("test_waits.py", "--results", "results", RUN="B"), "B")
        assert len(list(lab.folder.glob("results-2*/events.jsonl"))) == 1, (
            "the journal of the killed run is gone"
        )


LEAVES_A_DAEMON = """
    import os, pathlib, signal, time

    def test_leaves_a_daemon():
        if pathlib.Path("pid").exists():
            return
        if os.fork() == 0:
            os.setsid()
            os.closerange(0, 100)  # whoever reads our output waits for its end
            pathlib.Path("pid.new").write_text(str(os.getpid()))
            os.rename("pid.new", "pid")
            time.sleep(60)
            os._exit(0)
        while not pathlib.Path("pid").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def _daemon(lab: Lab) -> None:
    """Its pytest is killed, so that nothing but the kernel gives the directory back."""
    lab.write(test_daemon=LEAVES_A_DAEMON)
    ended = lab.pytest("test_daemon.py")
    pid = int((lab.folder / "pid").read_text())
    try:
        assert ended.exit_code == -signal.SIGKILL, ended.output
        assert process_state(pid) == "S"
        again = lab.pytest("test_daemon.py")
        assert again.exit_code == 0, again.output
    finally:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: process_state(pid) in ("", "Z"))


TRIALS = (
    Trial(
        id="two-runs-default-directory",
        claim="A run beside another one takes the next directory and says so; both are whole.",
        run=_two_runs,
    ),
    Trial(
        id="two-runs-github-outputs",
        claim="Outputs name the directory that the run has really written.",
        run=_outputs,
        thorough="two-runs-default-directory has the directory, unit tests the outputs",
    ),
    Trial(
        id="two-runs-named-directory",
        claim="A directory that was asked for by name and is in use is refused with the holder's pid, by all who would write.",
        run=_named,
    ),
    Trial(
        id="runs-at-once",
        claim="Runs that start at the same moment each have a whole set of results, also on top of earlier ones.",
        run=_many_at_once,
    ),
    Trial(
        id="plain-pytests-at-once",
        claim="Of plain pytest processes with one directory one gets it, and the others are refused before they run a test.",
        run=_pytests_at_once,
    ),
    Trial(
        id="directory-removed-and-taken",
        claim="A run whose directory was removed, and taken by another run, keeps apart from it: journal, logs, reports.",
        run=_removed_and_taken,
    ),
    Trial(
        id="directory-became-a-file",
        claim="A file in the place of the results directory stays, and the run's reports lie beside it.",
        run=_became_a_file,
    ),
    Trial(
        id="killed-command-frees-directory",
        claim="The directory of a killed command is free at once, and its journal is kept aside.",
        run=_killed,
    ),
    Trial(
        id="daemon-does-not-hold-directory",
        claim="A process that a test leaves running does not hold the results directory.",
        run=_daemon,
    ),
)
