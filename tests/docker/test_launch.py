"""``disttest launch`` against a real engine: what it starts, forwards, ends, reaps and hands back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine import BASE, own_engine
from junitparser import JUnitXml
from launching import Launcher, copy_image, ours, wait_until
from sample_runs import write_journal
from thorough import is_wanted

READY_THEN_SLEEP = """
import pathlib, time
pathlib.Path("ready").touch()
time.sleep(120)
"""
RECORDS_SIGNALS = """
import pathlib, signal, sys, time
def note(signum, frame):
    pathlib.Path("got").write_text(str(signum))
    sys.exit(100 + signum)
for signum in (1, 2, 15):
    signal.signal(signum, note)
pathlib.Path("ready").touch()
time.sleep(120)
"""
DEAF = """
import pathlib, signal, time
for signum in (1, 2, 3, 15):
    signal.signal(signum, signal.SIG_IGN)
pathlib.Path("ready").touch()
while True:
    time.sleep(1)
"""


def start_ready(launcher: Launcher, *arguments: str) -> subprocess.Popen[str]:
    process = launcher.start(*arguments)
    wait_until(
        lambda: (launcher.workspace / "ready").exists() or process.poll() is not None, "the program is ready"
    )
    assert process.poll() is None, process.communicate()
    return process


def test_returns_the_inner_exit_code_and_keeps_the_streams_apart(launcher: Launcher, probe: str) -> None:
    program = launcher.script("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    done = launcher.run("--image", probe, "--gpus", "none", program)
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "err\n" in done.stderr
    assert ours(launcher.engine) == []


def test_arguments_reach_the_program_unchanged(launcher: Launcher, probe: str) -> None:
    program = launcher.script("import sys, json; print(json.dumps(sys.argv[1:]))")
    hostile = [
        "$(touch hacked)",
        "`id`",
        'a"b',
        "a'b",
        "two\nlines",
        "${{ secrets.X }}",
        "--flag",
        "-k",
        "x and y",
    ]
    done = launcher.run("--image", probe, "--gpus", "none", program, *hostile, "--", "-k", "not slow")
    assert [*hostile, "--", "-k", "not slow"] == json.loads(done.stdout)
    assert not (launcher.workspace / "hacked").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_forwarded_to_the_program(launcher: Launcher, probe: str, signum: signal.Signals) -> None:
    process = start_ready(launcher, "--image", probe, "--gpus", "none", launcher.script(RECORDS_SIGNALS))
    process.send_signal(signum)
    process.communicate(timeout=30)
    assert (100 + signum, str(int(signum))) == (process.returncode, (launcher.workspace / "got").read_text())
    assert ours(launcher.engine) == []


def test_a_deaf_program_is_killed(launcher: Launcher, probe: str) -> None:
    process = start_ready(launcher, "--image", probe, "--gpus", "none", launcher.script(DEAF))
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=60)
    assert (process.returncode, ours(launcher.engine)) == (130, [])
    assert "was killed" in err


def test_a_killed_client_leaves_a_container_that_the_next_launch_reaps(
    launcher: Launcher, probe: str
) -> None:
    program = launcher.script("open('by-root', 'w').close()\n" + READY_THEN_SLEEP)
    process = start_ready(launcher, "--image", probe, "--gpus", "none", "--user", "image", program)
    process.kill()
    process.wait(10)
    (left,) = ours(launcher.engine)
    assert left.status == "running"
    done = launcher.run("--image", probe, "--gpus", "none", launcher.script("print('next')", "next.py"))
    assert (done.returncode, done.stdout) == (0, "next\n")
    assert f"removed container {left.id[:12]}" in done.stderr
    assert "has ended" in done.stderr
    assert ours(launcher.engine) == []
    assert owner(launcher.workspace / "by-root") == owner(launcher.workspace)


def test_a_living_launch_is_not_reaped(launcher: Launcher, probe: str) -> None:
    first = start_ready(launcher, "--image", probe, "--gpus", "none", launcher.script(RECORDS_SIGNALS))
    done = launcher.run("--image", probe, "--gpus", "none", launcher.script("print('second')", "second.py"))
    assert "removed container" not in done.stderr
    assert first.poll() is None


def test_files_belong_to_the_workspaces_owner(launcher: Launcher, probe: str) -> None:
    program = launcher.script("import os; os.makedirs('results/logs'); open('results/logs/a', 'w').close()")
    done = launcher.run("--image", probe, "--gpus", "none", program)
    assert done.returncode == 0, done.stderr
    for path in (launcher.workspace / "results").rglob("*"):
        assert owner(path) == owner(launcher.workspace)


@pytest.mark.parametrize("ending", ["pass", "import os; os.abort()"])
def test_files_of_a_container_that_runs_as_root_are_handed_back(
    launcher: Launcher, probe: str, ending: str
) -> None:
    before = launcher.workspace / "was-roots"
    before.touch()
    os.chown(before, 0, 0)
    time.sleep(0.05)
    program = launcher.script(
        "import os; print(os.getuid()); os.makedirs('a/b'); open('a/b/c', 'w').close()\n"
        "os.symlink('/etc', 'a/l')\n" + ending
    )
    done = launcher.run("--image", probe, "--gpus", "none", "--user", "0:0", program)
    assert done.stdout == "0\n", done.stderr
    for path in (launcher.workspace / "a", *(launcher.workspace / "a").rglob("*")):
        assert owner(path) == owner(launcher.workspace)
    assert owner(before) == (0, 0), "what was there before the run keeps its owner"


def test_a_path_with_a_colon_is_handed_back(launcher: Launcher, probe: str) -> None:
    launcher.workspace = launcher.workspace / "a:b"
    launcher.workspace.mkdir()
    os.chown(launcher.workspace, 1234, 1234)
    program = launcher.script("open('by-root', 'w').close()")
    done = launcher.run("--image", probe, "--gpus", "none", "--user", "image", program)
    assert done.returncode == 0, done.stderr
    assert owner(launcher.workspace / "by-root") == (1234, 1234)


def test_the_dead_mans_timer_ends_a_container_that_nobody_watches(launcher: Launcher, probe: str) -> None:
    process = start_ready(
        launcher, "--image", probe, "--gpus", "none", "--time-limit", "3", launcher.script(READY_THEN_SLEEP)
    )
    (container,) = ours(launcher.engine)
    process.kill()
    assert container.wait(timeout=30)["StatusCode"] == 124


def test_environment_is_an_allow_list(launcher: Launcher, probe: str) -> None:
    program = launcher.script("import os, json; print(json.dumps(dict(os.environ)))")
    done = launcher.run(
        "--image", probe, "--gpus", "none", "--env", "ASKED", "--env", "SET=a=b", program,
        env={
            "MY_SECRET": "s", "GITHUB_TOKEN": "t", "NCCL_DEBUG": "INFO", "DISTTEST_API_TOKEN": "u",
            "DISTTEST_SEED": "3", "ASKED": "yes", "GITHUB_SHA": "abc",
        },
    )  # fmt: skip
    seen = json.loads(done.stdout)
    assert not {"MY_SECRET", "GITHUB_TOKEN", "DISTTEST_API_TOKEN", "DOCKER_HOST", "PYTHONPATH"} & set(seen)
    assert {
        "NCCL_DEBUG": "INFO",
        "DISTTEST_SEED": "3",
        "ASKED": "yes",
        "SET": "a=b",
        "GITHUB_SHA": "abc",
    }.items() <= (seen.items())
    assert seen["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_outputs_and_summary_are_written_from_inside(launcher: Launcher, probe: str, tmp_path: Path) -> None:
    files = {name: tmp_path / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.touch()
        os.chown(file, 1234, 1234)
    program = launcher.script(
        "import os\nfor name in ('GITHUB_OUTPUT', 'GITHUB_STEP_SUMMARY'):\n"
        "    open(os.environ[name], 'a').write(name)"
    )
    done = launcher.run(
        "--image", probe, "--gpus", "none", program, env={name: str(file) for name, file in files.items()}
    )
    assert done.returncode == 0, done.stderr
    assert list(files) == [file.read_text() for file in files.values()]


def test_a_run_that_was_killed_has_outputs_reports_and_a_summary(
    launcher: Launcher, probe: str, tmp_path: Path
) -> None:
    files = {name: tmp_path / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.touch()
        os.chown(file, 1234, 1234)
    write_journal(launcher.workspace / "so-far.jsonl")
    program = launcher.script(
        "import os, shutil\nshutil.copy('so-far.jsonl', 'results/events.jsonl')\nos.kill(os.getpid(), 9)"
    )
    done = launcher.run(
        "--image", probe, "--gpus", "none", "--results", "results", program,
        env={name: str(file) for name, file in files.items()},
    )  # fmt: skip

    assert done.returncode == 137, done.stderr
    outputs = files["GITHUB_OUTPUT"].read_text()
    assert all(f"\n{value}\n" in outputs for value in ("137", "cancelled", "1")), outputs
    assert (launcher.workspace / "results" / "junit.xml").exists()
    assert files["GITHUB_STEP_SUMMARY"].read_text()


def test_the_next_launch_writes_the_reports_of_one_whose_launcher_was_killed(
    launcher: Launcher, probe: str
) -> None:
    write_journal(launcher.workspace / "so-far.jsonl")
    program = launcher.script(
        "import shutil\nshutil.copy('so-far.jsonl', 'out/events.jsonl')\n" + READY_THEN_SLEEP
    )
    asked = ("--image", probe, "--gpus", "none")
    process = start_ready(launcher, *asked, "--results", "out", program)
    process.kill()
    process.wait(10)
    done = launcher.run(*asked, launcher.script("print('next')", "next.py"))
    assert (done.returncode, done.stdout) == (0, "next\n")
    cases = JUnitXml.fromfile(str(launcher.workspace / "out" / "junit.xml"))
    assert (cases.tests, owner(launcher.workspace / "out" / "junit.xml")) == (1, owner(launcher.workspace))
    assert "the launcher was killed" in (launcher.workspace / "out" / "summary.md").read_text()


def test_limits_and_sandbox_of_the_container(launcher: Launcher, probe: str) -> None:
    process = start_ready(
        launcher, "--image", probe, "--gpus", "none", "--read-only", "--network", "none",
        "--shm-size", "256m", "--memory", "512m", "--pids-limit", "99",
        launcher.script("open('/tmp/x', 'w').close()\n" + READY_THEN_SLEEP),
    )  # fmt: skip
    (container,) = ours(launcher.engine)
    host, config = container.attrs["HostConfig"], container.attrs["Config"]
    assert (
        host["ShmSize"], host["IpcMode"], host["Init"], host["ReadonlyRootfs"], host["NetworkMode"],
    ) == (256 * 1024**2, "private", True, True, "none")  # fmt: skip
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (512 << 20, 512 << 20, 99)
    limits = {limit["Name"] for limit in host["Ulimits"] or ()}
    assert (
        host["CapDrop"], host["SecurityOpt"], config["User"],
    ) == (["ALL"], ["no-new-privileges"], "1234:1234")  # fmt: skip
    assert not config["Tty"]
    process.send_signal(signal.SIGTERM)
    _out, err = process.communicate(timeout=30)
    # An engine that may not raise limits itself (in a container, say) gets another try without, and a warning.
    assert limits == {"memlock", "stack"} or "[ulimit-refused]" in err


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            ("--image", "no/such:1", "--pull", "never"),
            "the engine has no image no/such:1, and --pull is never",
        ),
        (("--image", "Bad/Name:1"), "[image-name]"),
        (("--image", BASE, "--pull", "never"), "[image-empty]"),
        (("--network", "no-such"), "[network-missing]"),
        (("--memory", "1k"), "[memory-limit-small]"),
    ],
)
def test_mistakes_of_the_user_are_usage_errors(
    launcher: Launcher, probe: str, asked: tuple[str, ...], message: str
) -> None:
    image = () if "--image" in asked else ("--image", probe)
    done = launcher.run(*image, *asked, "--gpus", "none", launcher.script("print('ran')"))
    assert done.returncode == 4, done.stderr
    assert message in done.stderr
    assert ours(launcher.engine) == []


def test_unreachable_registry_is_tried_again_and_explained(launcher: Launcher) -> None:
    done = launcher.run("--image", "registry.invalid/no/such:1", "--gpus", "none", "ddp")
    assert done.returncode == 8
    assert "attempt 3 failed; retrying" in done.stderr
    assert "[registry-unreachable]" in done.stderr


def test_gpus_that_the_engine_can_not_give(launcher: Launcher, probe: str, tmp_path: Path) -> None:
    with own_engine(tmp_path / "data", takes_gpus=False) as bare:
        copy_image(probe, launcher.engine, bare, tmp_path)
        there = Launcher(bare, launcher.workspace)
        done = there.run("--image", probe, "--gpus", "GPU-11111111-2222-3333-4444-555555555555", "ddp")
        assert ours(bare) == []
    assert done.returncode == 8
    assert "could not select device driver" in done.stderr
    assert "[gpu-toolkit-missing]" in done.stderr


def test_gpus_that_are_required_and_missing(launcher: Launcher, probe: str) -> None:
    done = launcher.run("--image", probe, "--gpus", "2", "ddp")
    assert done.returncode == 6
    assert "2 GPUs requested, but only 0 available" in done.stderr


def test_no_gpus_is_a_warning(launcher: Launcher, probe: str) -> None:
    done = launcher.run("--image", probe, launcher.script("print('ran')"))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "running on the CPU" in done.stderr


def test_dry_run_starts_nothing_and_says_what_it_would(launcher: Launcher) -> None:
    done = launcher.run("--image", "no/such:1", "--gpus", "none", "--dry-run", "ddp", "--world-sizes", "2")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["create"]["command"] == ["ddp", "--world-sizes", "2"]
    assert told["spec"]["image"] == "no/such:1"


def test_values_to_hide_stand_on_no_command_line_of_the_container(launcher: Launcher) -> None:
    said = ("--mask", "in-front", "ddp", "--mask=behind it", "--retries", "1", "--mask", "last")
    before = {"DISTTEST_MASK": "from before"}
    launched = launcher.run("--image", "no/such:1", "--gpus", "none", "--dry-run", *said, env=before)
    assert launched.returncode == 0, launched.stderr
    told = json.loads(launched.stdout)
    assert told["create"]["command"] == ["ddp", "--retries", "1"]
    assert told["spec"]["environment"]["DISTTEST_MASK"].split("\n") == ["***"] * 4


def test_many_at_once(launcher: Launcher, probe: str) -> None:
    count = 20 if is_wanted() else 6
    program = launcher.script("import sys; print('number', sys.argv[1])")
    with ThreadPoolExecutor(count) as pool:
        done = list(
            pool.map(
                lambda n: launcher.run("--image", probe, "--gpus", "none", program, str(n)), range(count)
            )
        )
    assert [(0, f"number {n}\n") for n in range(count)] == [(one.returncode, one.stdout) for one in done], [
        one.stderr for one in done
    ]
    assert ours(launcher.engine) == []


def test_engine_that_stops_in_mid_run(launcher: Launcher, probe: str, tmp_path: Path) -> None:
    with own_engine(tmp_path / "data") as second:
        copy_image(probe, launcher.engine, second, tmp_path)
        doomed = Launcher(second, launcher.workspace)
        process = start_ready(doomed, "--image", probe, "--gpus", "none", launcher.script(READY_THEN_SLEEP))
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 8, err


def test_engine_that_is_not_there(launcher: Launcher, tmp_path: Path) -> None:
    done = launcher.run("ddp", env={"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert done.returncode == 8
    assert "[engine-gone]" in done.stderr


def test_signal_while_the_image_is_pulled(launcher: Launcher) -> None:
    process = launcher.start("--image", "registry.invalid/no/such:1", "--gpus", "none", "ddp")
    line = process.stderr.readline()
    while "pulling" not in line:
        line = process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143


def owner(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid
