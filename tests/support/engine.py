"""A real Docker engine of the tests' own, and the images in it.

The engine has its own data root, socket and process, so that it neither needs nor touches another one on the
machine. A stand-in for the Dockerfile's base image is made with ``mmdebstrap``, since a registry may be out
of reach. What takes long is kept for the next run, of another checkout, too: the engine knows itself which layers of
an image are still what its Dockerfile and its files say.

``DISTTEST_TEST_DOCKER_HOST`` names a running engine to use instead; ``DISTTEST_TEST_BASE_IMAGE`` a base
image.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import docker
import psutil
from docker.errors import DockerException, ImageNotFound

from disttest.extras.emulated_gpus.build import default_cache

ROOT = Path(__file__).resolve().parents[2]
CACHE = default_cache(os.environ) / "docker"
NVIDIA_TOOLKIT = ROOT / "tests" / "support" / "nvidia_toolkit"
"""What an engine has to find on its PATH to take ``docker run --gpus``."""
PACKAGES = "ca-certificates,python3,python3-venv"
UNUSED_FOR = "168h"
"""Layers that no build has used for so long go."""
START_TIMEOUT_S = 60.0
BUILD_TIMEOUT_S = 600.0


def _tag(name: str, *made_of: str) -> str:
    """The name of an image that is what it is made of."""
    return f"disttest-test/{name}:{hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]}"


BASE = _tag("base", PACKAGES)

BUILDER_DOCKERFILE = f"""\
FROM {BASE}
COPY certificates /usr/local/share/ca-certificates
RUN update-ca-certificates
COPY wheels /opt/wheels
ENV PIP_FIND_LINKS=/opt/wheels PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DEFAULT_TIMEOUT=180
"""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A running engine."""

    host: str
    """What DOCKER_HOST has to say to reach it."""

    def client(self) -> docker.DockerClient:
        return docker.DockerClient(base_url=self.host, timeout=60)

    def environment(self) -> dict[str, str]:
        """The caller's environment, pointed at this engine."""
        return {**os.environ, "DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "1"}

    def docker(
        self, *arguments: str, check: bool = True, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run the ``docker`` command as a user would."""
        return subprocess.run(
            [docker_command(), *arguments],
            env=self.environment(),
            check=check,
            timeout=timeout_s,
            text=True,
            capture_output=True,
        )


def docker_command() -> str:
    """Debian's client: it carries BuildKit itself; a newer one on PATH may lack its buildx plugin."""
    return "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"


@contextlib.contextmanager
def kept_engine() -> Iterator[Engine]:
    """An engine with the images of earlier runs, or without where another run has that one."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as ending:
        lock = ending.enter_context((CACHE / "data.lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            folder = ending.enter_context(tempfile.TemporaryDirectory(prefix="data-", dir=CACHE))
            yield ending.enter_context(own_engine(Path(folder)))
            return
        # The daemon holds the lock, too: it may outlive a run that is killed.
        yield ending.enter_context(own_engine(CACHE / "data", holds=(lock.fileno(),)))


@contextlib.contextmanager
def own_engine(data_root: Path, *, takes_gpus: bool = True, holds: Sequence[int] = ()) -> Iterator[Engine]:
    """Start ``dockerd`` on a fresh socket; its data root may hold the images of an earlier run."""
    for command in ("dockerd", "mmdebstrap"):
        if shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            raise RuntimeError(
                f"{command} is missing: run `make setup`, or skip with `make test SKIP=docker`"
            )
    with tempfile.TemporaryDirectory(prefix="dt-engine-") as folder:
        engine = Engine(host=f"unix://{folder}/docker.sock")
        daemon = start_daemon(Path(folder), data_root, [NVIDIA_TOOLKIT] if takes_gpus else [], holds)
        try:
            wait_for(engine, daemon, Path(folder) / "log")
            yield engine
        finally:
            stop_daemon(daemon)
            _end_containers(Path(folder), data_root)


def _end_containers(folder: Path, data_root: Path) -> None:
    """End the containers that a killed engine has left, and undo its mounts: a container in the host's network has one, too."""
    for process in psutil.process_iter(["name", "cmdline"]):
        shim, words = process.info["name"] or "", process.info["cmdline"] or []
        if shim.startswith("containerd-shim") and any(word.startswith(f"{folder}/") for word in words):
            for each in [*process.children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed(points):
        if Path(point).is_relative_to(folder) or Path(point).is_relative_to(data_root):
            subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)


def start_daemon(
    folder: Path, data_root: Path, more_path: Sequence[Path], holds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start the daemon in a session of its own, so that a test's Ctrl-C does not reach it."""
    data_root.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [
                "dockerd",
                "--data-root",
                data_root,
                "--exec-root",
                folder / "exec",
                "--log-level",
                "warn",
                "--host",
                f"unix://{folder}/docker.sock",
                "--pidfile",
                folder / "pid",
            ],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=holds,
            env={
                **os.environ,
                "PATH": ":".join([*map(str, more_path), os.environ["PATH"], "/usr/sbin:/sbin"]),
            },
        )


def wait_for(engine: Engine, daemon: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the engine answers a ping; the daemon's own words explain a failure."""
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_at and daemon.poll() is None:
        with contextlib.suppress(DockerException, OSError):
            engine.client().ping()
            return
        time.sleep(0.1)
    raise RuntimeError(f"dockerd did not start:\n{log.read_text(errors='replace')[-4000:]}")


def stop_daemon(daemon: subprocess.Popen[bytes]) -> None:
    """Stop it; its containers end with it."""
    daemon.terminate()
    try:
        daemon.wait(30)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait(10)


def ensure_base(engine: Engine) -> str:
    """Import the stand-in base image, made once with ``debootstrap``."""
    if chosen := os.environ.get("DISTTEST_TEST_BASE_IMAGE"):
        return chosen
    if has_image(engine, BASE):
        return BASE
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = CACHE / f"base-{BASE.partition(':')[2]}.tar"
    if not archive.exists():
        make_base(archive)
    with archive.open("rb") as tar:
        subprocess.run(
            [docker_command(), "import", "-", BASE],
            stdin=tar,
            check=True,
            env=engine.environment(),
            stdout=subprocess.DEVNULL,
            timeout=BUILD_TIMEOUT_S,
        )
    return BASE


def make_base(archive: Path) -> None:
    """Make a tar of a minimal Debian with Python."""
    partial = archive.with_suffix(f".{os.getpid()}")
    try:
        # mmdebstrap takes half of the processor time of debootstrap. Unsafe: after a power failure it may be damaged.
        run_loud(
            *("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "--dpkgopt=force-unsafe-io"),
            *("--format=tar", "bookworm", str(partial), "http://deb.debian.org/debian"),
        )
        partial.rename(archive)
    finally:
        partial.unlink(missing_ok=True)


def ensure_builder(engine: Engine) -> str:
    """The base with what reaches the package index from here: certificates and torch's CPU wheel."""
    certificates = [path.read_text() for path in _certificates()]
    tag = _tag("builder", BUILDER_DOCKERFILE, _pin_of_torch(), *certificates)
    if has_image(engine, tag):
        return tag
    with tempfile.TemporaryDirectory(prefix="builder-", dir=CACHE) as folder:
        context = Path(folder)
        (context / "Dockerfile").write_text(BUILDER_DOCKERFILE)
        copy_certificates(context / "certificates")
        download_torch(context / "wheels")
        build(engine, context, tag=tag)
    return tag


def copy_certificates(folder: Path) -> None:
    """What this machine trusts besides the usual authorities."""
    folder.mkdir()
    for certificate in _certificates():
        shutil.copy(certificate, folder)


def _certificates() -> list[Path]:
    return sorted(Path("/usr/local/share/ca-certificates").glob("**/*.crt"))


def download_torch(folder: Path) -> None:
    """Fetch the wheel that cpu.lock names with this machine's own pip configuration."""
    run_loud(
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder),
        "--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp",
        "--platform", "manylinux_2_28_x86_64", _pin_of_torch(),
    )  # fmt: skip


def _pin_of_torch() -> str:
    lines = (ROOT / "requirements" / "cpu.lock").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch==")).split()[0]


PROBE_DOCKERFILE = """\
FROM {base}
COPY disttest /usr/local/bin/disttest
RUN chmod 755 /usr/local/bin/disttest
"""
PROBE_COMMAND = """\
#!/usr/bin/python3 -u
import json, os, sys
words = sys.argv[1:]
first = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
if first is None:
    sys.exit(f"no such file: {words}")
os.environ["PROBE_FLAGS"] = json.dumps(words[:first])
os.execv(sys.executable, [sys.executable, "-u", *words[first:]])
"""
PROBE = "disttest-test/probe:1"


def ensure_probe(engine: Engine) -> str:
    """An image whose ``disttest FILE`` runs a Python file: no torch, starts at once."""
    base = ensure_base(engine)
    with tempfile.TemporaryDirectory(prefix="probe-", dir=CACHE) as folder:
        (Path(folder) / "Dockerfile").write_text(PROBE_DOCKERFILE.format(base=base))
        (Path(folder) / "disttest").write_text(PROBE_COMMAND)
        build(engine, Path(folder), tag=PROBE)
    return PROBE


def build_target(engine: Engine, target: str) -> str:
    """Build a target of the real Dockerfile on the stand-in base."""
    tag = f"disttest-test/{target}:1"
    base = ensure_base(engine)
    builder = ensure_builder(engine)
    arguments = {
        "BASE_IMAGE": base,
        "BUILDER_IMAGE": builder,
        "TORCH_INDEX": "",
        "FULL_OF": "cpu",
        "REVISION": "test",
    }
    build(engine, ROOT, tag=tag, target=target, arguments=arguments)
    # The data root outlives the tests: what a new build has replaced would pile up in it.
    engine.docker("image", "prune", "--force")
    engine.docker("builder", "prune", "--force", f"--filter=until={UNUSED_FOR}")
    return tag


def build(
    engine: Engine,
    context: Path,
    *,
    tag: str,
    target: str = "",
    arguments: dict[str, str] | None = None,
) -> None:
    """Run ``docker build``."""
    options = [f"--build-arg={name}={value}" for name, value in (arguments or {}).items()]
    if target:
        options.append(f"--target={target}")
    done = engine.docker(
        "build",
        "--progress=plain",
        *options,
        f"--tag={tag}",
        str(context),
        check=False,
        timeout_s=BUILD_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"docker build of {tag} failed:\n{done.stderr[-6000:]}{done.stdout[-2000:]}")


def has_image(engine: Engine, tag: str) -> bool:
    """Whether the engine has it already."""
    try:
        engine.client().images.get(tag)
    except ImageNotFound:
        return False
    return True


def run_loud(*command: str) -> None:
    """Run it, and show everything it said if it fails."""
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
