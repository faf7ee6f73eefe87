"""The real image: what `docker run` does with it, on a runner without GPUs."""

from __future__ import annotations

import html
import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine import ROOT, Engine, build, copy_certificates
from launching import Launcher, ours, wait_until

PASSES = """
import pytest, torch, torch.distributed as dist

@pytest.mark.world_size(2)
def test_sum(world):
    x = torch.full((8,), float(world.rank), device=world.device)
    dist.all_reduce(x)
    assert x[0] == 1
"""
HANGS = """
import pathlib, time, pytest

@pytest.mark.world_size(2)
def test_first(world):
    pass

@pytest.mark.world_size(2)
def test_waits(world):
    if world.rank == 0:
        pathlib.Path("ready").touch()
    time.sleep(120)
"""


@pytest.fixture
def project(workspace: Path) -> Path:
    (workspace / "test_sums.py").write_text(PASSES)
    return workspace


def docker_run(
    engine: Engine, image: str, folder: Path, *options: str, command: tuple[str, ...] = ("test_sums.py",)
):
    """``docker run`` as somebody would type it, in a folder with tests."""
    return engine.docker(
        "run", "--rm", f"--volume={folder}:/workspace", *options, image, *command, check=False, timeout_s=300
    )


def outcomes(folder: Path) -> dict[str, str]:
    """Test -> passed or the tag of what went wrong, from JUnit XML."""
    cases = ET.parse(folder / "results" / "junit.xml").iter("testcase")
    marks = ("failure", "error", "skipped")
    return {
        case.get("name", ""): next((mark for mark in marks if case.find(mark) is not None), "passed")
        for case in cases
    }


def test_alone_it_prints_help(engine: Engine, image: str) -> None:
    done = engine.docker("run", "--rm", image)
    assert done.stdout.startswith("Usage: disttest")


@pytest.mark.parametrize("command", [("smoke",), ("ddp", "--world-sizes=2")], ids=["smoke", "ddp"])
def test_bundled_suites_run_by_name(engine: Engine, image: str, command: tuple[str, ...]) -> None:
    options = ("--user=1234:1234", "--network=none")
    done = engine.docker("run", "--rm", *options, image, *command, check=False, timeout_s=500)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="root"),
        pytest.param(("--user=1234:1234",), id="user"),
        pytest.param(("--network=none",), id="no-network"),
        pytest.param(("--read-only", "--tmpfs=/tmp:exec"), id="read-only"),
        pytest.param(("--init",), id="docker-init"),
        pytest.param(("--cap-drop=ALL", "--security-opt=no-new-privileges", "--user=1234:1234"), id="bare"),
        pytest.param(
            ("--read-only", "--tmpfs=/tmp:exec", "--network=none", "--user=1234:1234", "--shm-size=64m"),
            id="all",
        ),
    ],
)
def test_ranks_run_wherever_it_is_put(
    engine: Engine, image: str, project: Path, options: tuple[str, ...]
) -> None:
    done = docker_run(engine, image, project, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(outcomes(project).values()) == {"passed"}
    assert list((project / "results" / "logs").rglob("rank1.log"))
    assert "Traceback" not in done.stderr


def test_little_shared_memory_gets_advice(engine: Engine, image: str) -> None:
    done = engine.docker("run", "--rm", "--shm-size=64m", image, "doctor", check=False, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Start the container with --shm-size=1g or more" in done.stdout


@pytest.mark.parametrize(
    ("limit", "codes", "words"),
    [
        ("--pids-limit=12", {7}, "the limit on processes is 12 with"),
        (
            "--memory=150m",
            {3},
            "memory ran out: the kernel ran out of memory for it (150 MiB, the limit of its cgroup)",
        ),
    ],
)
def test_a_limit_that_is_too_small_is_named(
    engine: Engine, image: str, project: Path, limit: str, codes: set[int], words: str
) -> None:
    done = docker_run(engine, image, project, limit)
    assert done.returncode in codes, done.stdout + done.stderr
    assert words in " ".join(done.stdout.split())
    assert words in html.unescape((project / "results" / "summary.md").read_text())


def test_stopping_it_leaves_reports_within_seconds(engine: Engine, image: str, project: Path) -> None:
    (project / "test_sums.py").write_text(HANGS)
    name = "disttest-test-stopped"
    engine.docker("rm", "--force", name, check=False)
    engine.docker(
        "run", "--detach", f"--name={name}", f"--volume={project}:/workspace", image, "test_sums.py"
    )
    try:
        wait_until((project / "ready").exists, "the second test runs")
        engine.docker("stop", "--time=9", name)
        # Docker's KILL would come after nine seconds, and leave exit code 137 and no report.
        state = json.loads(engine.docker("inspect", name).stdout)[0]["State"]
        assert state["ExitCode"] != 137
        found = outcomes(project)
        assert {name.split("[")[0]: found[name] for name in found} == {
            "test_first": "passed",
            "test_waits": "error",
        }
    finally:
        engine.docker("rm", "--force", name)


def test_launch_runs_the_real_image_in_the_workspace(engine: Engine, image: str, workspace: Path) -> None:
    (workspace / "test_sums.py").write_text(PASSES)
    launcher = Launcher(engine, workspace)
    done = launcher.run(
        "--image", image, "--results", "out", "test_sums.py", "--world-sizes", "2", "--", "-q"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (workspace / "out" / "junit.xml").exists()
    owner = workspace.stat()
    for path in (workspace / "out").rglob("*"):
        assert (path.stat().st_uid, path.stat().st_gid) == (owner.st_uid, owner.st_gid), path
    assert ours(engine) == []


def test_interrupting_the_launcher_leaves_reports(engine: Engine, image: str, workspace: Path) -> None:
    (workspace / "test_sums.py").write_text(HANGS)
    launcher = Launcher(engine, workspace)
    process = launcher.start("--image", image, "--results", "results", "test_sums.py")
    wait_until((workspace / "ready").exists, "the second test runs")
    process.send_signal(2)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (2, 130), out + err
    assert "passed" in outcomes(workspace).values()
    assert "error" in outcomes(workspace).values()
    assert ours(engine) == []


def test_nothing_in_it_is_not_needed(engine: Engine, image: str) -> None:
    script = (
        "command -v gcc cc g++ git curl; ls /wheels /build /root/.cache 2>/dev/null; id -u; cat /proc/1/comm"
    )
    done = engine.docker("run", "--rm", "--entrypoint=tini", image, "--", "sh", "-c", script)
    assert done.stdout.split() == ["0", "tini"]


def test_process_1_reaps_what_ranks_leave(engine: Engine, image: str) -> None:
    script = (
        "import os, subprocess, time\n"
        "subprocess.run(['sh', '-c', 'sleep 0.1 & exit 0'])\n"
        "time.sleep(0.6)\n"
        "print([line for line in os.popen('cat /proc/[0-9]*/stat').read().splitlines() if ') Z ' in line])\n"
    )
    done = engine.docker("run", "--rm", "--entrypoint=tini", image, "--", "python3", "-c", script)
    assert done.stdout.strip() == "[]"


def test_labels_and_variables_say_what_it_is(engine: Engine, image: str) -> None:
    config = json.loads(engine.docker("inspect", image).stdout)[0]["Config"]
    assert config["Labels"]["org.opencontainers.image.title"] == "disttest"
    assert config["Labels"]["org.opencontainers.image.revision"] == "test"
    assert config["Entrypoint"] == ["tini", "--", "disttest"]
    assert config["User"] == ""


SERVES = """
mkdir served
id -u > served/user
python3 -m http.server --bind 127.0.0.1 --directory served 8123 > server.log 2>&1 &
until python3 -c "from urllib.request import urlopen; urlopen('http://127.0.0.1:8123/user')" 2>/dev/null; do sleep 0.1; done
echo "the server is up"
"""
ASKS_IT = """
import os, urllib.request, pytest

@pytest.mark.world_size(2)
def test_served(world):
    served = urllib.request.urlopen("http://127.0.0.1:8123/user").read()
    assert int(served) == os.getuid() == 1234
"""


def test_a_script_starts_in_the_container_what_the_tests_talk_to(launcher: Launcher, image: str) -> None:
    (launcher.workspace / "set up.sh").write_text(SERVES)
    (launcher.workspace / "test_served.py").write_text(ASKS_IT)
    asked = ("--image", image, "--network=none", "test_served.py", "--setup", "set up.sh")
    done = launcher.run(*asked, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the server is up" in done.stderr
    assert "1 passed" in done.stdout
    assert ours(launcher.engine) == []


def test_a_script_that_fails_in_the_container_is_no_tests_failure(launcher: Launcher, image: str) -> None:
    (launcher.workspace / "set up.sh").write_text("echo the database is missing >&2\nexit 3\n")
    (launcher.workspace / "test_served.py").write_text(ASKS_IT)
    done = launcher.run("--image", image, "test_served.py", "--setup", "set up.sh", timeout_s=300)
    assert done.returncode == 10, done.stdout + done.stderr
    assert "the database is missing" in done.stderr
    assert not (launcher.workspace / "results").exists()


CERTIFIED = """\
FROM {image}
COPY certificates /usr/local/share/ca-certificates
RUN update-ca-certificates
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
"""


@pytest.fixture(scope="module")
def certified(engine: Engine, image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image, able to reach the package index from here."""
    context = tmp_path_factory.mktemp("certified")
    (context / "Dockerfile").write_text(CERTIFIED.format(image=image))
    copy_certificates(context / "certificates")
    build(engine, context, tag="disttest-test/certified:1")
    return "disttest-test/certified:1"


@pytest.fixture(scope="module")
def derived(engine: Engine, certified: str) -> str:
    """The example that has more packages."""
    tag = "disttest-test/derived:1"
    build(engine, ROOT / "examples" / "derived", tag=tag, arguments={"DISTTEST_IMAGE": certified})
    return tag


def test_tests_import_what_a_derived_image_has(engine: Engine, derived: str, workspace: Path) -> None:
    shutil.copytree(ROOT / "examples" / "derived" / "tests", workspace / "tests")
    done = docker_run(engine, derived, workspace, "--user=1234:1234", command=("tests",))
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(outcomes(workspace).values()) == {"passed"}


def test_a_derived_image_keeps_its_torch(engine: Engine, derived: str, workspace: Path) -> None:
    done = docker_run(
        engine, derived, workspace, "--entrypoint=python",
        command=("-m", "pip", "install", "--dry-run", "torch==2.8.0"),
    )  # fmt: skip
    assert done.returncode != 0
    assert "The user requested torch==2.8.0" in done.stdout + done.stderr
    assert "The user requested (constraint) torch==" in done.stdout + done.stderr


@pytest.fixture
def no_layers_left(engine: Engine) -> Iterator[None]:
    """The engine's data outlives the tests: a layer there keeps its whole image."""
    yield
    engine.docker("image", "prune", "--all", "--force", "--filter", "label=io.disttest.requirements=1")
    listed = engine.docker("image", "ls", "--quiet", "disttest-requirements")
    assert listed.stdout == ""


@pytest.mark.usefixtures("no_layers_left")
def test_a_launch_installs_what_the_tests_import(launcher: Launcher, certified: str, project: Path) -> None:
    shutil.copy(ROOT / "examples" / "derived" / "tests" / "test_rearrange.py", project)
    shutil.copy(ROOT / "examples" / "derived" / "requirements.txt", project)
    asked = ("--image", certified, "--pull=never", "--requirements", "requirements.txt", "test_rearrange.py")
    first = launcher.run(*asked, timeout_s=300)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "installing requirements.txt into" in first.stderr
    assert "1 passed" in first.stdout

    (project / "requirements.txt").write_text("torch==2.8.0\n")
    refused = launcher.run(*asked, timeout_s=300)
    assert refused.returncode == 4, refused.stdout + refused.stderr
    assert "The user requested (constraint) torch==" in refused.stderr
