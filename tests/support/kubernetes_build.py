"""Kubernetes 1.20.2, built from Debian 12's source package and kept: what is newer is in no registry that tests may need.

One binary is the API server, the controller manager, the scheduler and the kubelet; another one, of a megabyte, is the
pause container. They cost some 400 s of a processor once, and are kept in the user's cache, by a digest of everything
here that decides what they are. ``python tests/support/kubernetes_build.py`` makes them; with ``--kept`` its exit
code shows whether they are there.

What Debian's package lacks or has broken is made good here:

- the generated OpenAPI definitions are not in its tarball: its own generator makes them;
- its reflect2 1.0.1 crashes what Go 1.18 or newer has built (modern-go/reflect2#26): Debian's 1.0.2 takes its place.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from disttest.extras.emulated_gpus.build import default_cache

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "kubernetes"
VERSION = "1.20.2"
PROJECT = "src/k8s.io/kubernetes"
REFLECT2 = "vendor/github.com/modern-go/reflect2"
SUITE = "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main\n"
HOW = f"To make it by hand, with the network: {sys.executable} {Path(__file__).relative_to(ROOT)}"


class NoKubernetes(Exception):
    """It could not be built; the message says what to run."""


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """What a build has made."""

    kubernetes: Path
    """The first argument says which program it is."""
    pause: Path


def kubernetes_binaries() -> Binaries:
    """The binaries; built if they are missing, after whoever builds them at the moment.

    Raises:
        NoKubernetes: there is no network or no compiler.
    """
    folder = _folder()
    with _alone(folder):
        if not folder.is_dir():
            _build(folder)
    return Binaries(kubernetes=folder / "kubernetes", pause=folder / "pause")


def are_kept() -> bool:
    """Whether this machine has the binaries, so that nothing would be compiled."""
    return _folder().is_dir()


def _folder() -> Path:
    return default_cache(os.environ) / f"kubernetes-{VERSION}-{_digest()}"


def _digest() -> str:
    files = (Path(__file__), *sorted(SOURCES.glob("*/*.go")))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def _build(folder: Path) -> None:
    """Build in a folder beside; one that was interrupted goes on with what it has compiled."""
    work = folder.with_name(f"{folder.name}.building")
    work.mkdir(parents=True, exist_ok=True)
    project = work / PROJECT
    if not project.is_dir():
        _fetch(work, project)
    _generate_openapi(work, project)
    made = work / "made"
    made.mkdir(exist_ok=True)
    for name, source in (("kubernetes", "control_plane"), ("pause", "pause")):
        package = project / "cmd" / f"disttest-{name}"
        shutil.copytree(SOURCES / source, package, dirs_exist_ok=True)
        _compile(work, made / name, package)
    made.rename(folder)
    shutil.rmtree(work)


def _fetch(work: Path, project: Path) -> None:
    """The sources, by apt with a list of its own: the machine's lists name no sources, or another release."""
    downloads, fresh = work / "downloads", project.with_name("kubernetes.fresh")
    (downloads / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (downloads / "sources.list").write_text(SUITE)
    apt = (
        *("apt-get", "-q", f"-oDir::Etc::SourceList={downloads}/sources.list", "-oDir::Etc::SourceParts=-"),
        *(f"-oDir::State::Lists={downloads}/lists", "-oAPT::Sandbox::User=root", "-oAcquire::Retries=3"),
    )
    _call(*apt, "update", cwd=downloads)
    _call(*apt, "source", "--download-only", "kubernetes", "golang-github-modern-go-reflect2", cwd=downloads)
    _unpack(downloads, f"kubernetes_*{VERSION}.orig.tar.gz", fresh)
    _unpack(downloads, "golang-github-modern-go-reflect2_*.orig.tar.gz", fresh / REFLECT2)
    fresh.rename(project)


def _unpack(downloads: Path, pattern: str, folder: Path) -> None:
    (archive,) = downloads.glob(pattern)
    if folder.exists():  # of one that was interrupted
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    _call("tar", "-xzf", str(archive), "--strip-components=1", "-C", str(folder), cwd=downloads)


def _generate_openapi(work: Path, project: Path) -> None:
    generator, package = work / "openapi-gen", "k8s.io/kubernetes/pkg/generated/openapi"
    if (project / "pkg/generated/openapi/zz_generated.openapi.go").exists():
        return
    _compile(work, generator, project / "vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    _call(
        *(str(generator), "-i", ",".join(_described(project)), "-p", package, "-O", "zz_generated.openapi"),
        *("-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt", "-r", str(work / "violations")),
        *("-o", str(work / "src")),
        cwd=project,
        # It reads the standard library's sources, and does not know where they are: its own paths are trimmed.
        environ={**_go_environment(work), "GOROOT": _read("go", "env", "GOROOT")},
    )


def _described(project: Path) -> list[str]:
    """The packages that ask for a definition, as the project's own makefile finds them."""
    command = ("grep", "-rRl", "--include=*.go", "^// +k8s:openapi-gen=", "pkg", "cmd", "vendor/k8s.io")
    found = _read(*command, cwd=project).split()
    examples = ("vendor/k8s.io/code-generator", "vendor/k8s.io/sample-apiserver")
    folders = {str(Path(path).parent) for path in found if not path.startswith(examples)}
    return [f"k8s.io/kubernetes/{folder}" for folder in sorted(folders)]


def _compile(work: Path, binary: Path, package: Path) -> None:
    major, minor, _ = VERSION.split(".")
    facts = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    where = (
        "k8s.io/kubernetes/vendor/k8s.io/component-base/version",
        "k8s.io/kubernetes/vendor/k8s.io/client-go/pkg/version",
    )
    stamps = " ".join(f"-X {place}.{name}={value}" for place in where for name, value in facts.items())
    _call(
        *("go", "build", "-tags", "providerless", "-trimpath", "-ldflags", f"-s -w {stamps}"),
        *("-o", str(binary), f"./{package.relative_to(work / PROJECT)}"),
        cwd=work / PROJECT,
        environ=_go_environment(work),
    )


def _go_environment(work: Path) -> dict[str, str]:
    # Modules are off, since the tarball's go.mod does not agree with its vendored folder.
    own = {"GOPATH": str(work), "GOCACHE": str(work / "cache"), "GO111MODULE": "off", "CGO_ENABLED": "0"}
    return {**os.environ, "GOFLAGS": "", **own}


def _call(*command: str, cwd: Path, environ: dict[str, str] | None = None) -> None:
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ended.returncode:
        raise NoKubernetes(
            f"Kubernetes {VERSION} could not be built for tests/kubernetes:\n{ended.stdout[-3000:]}\n"
            f"{HOW}\nor leave these tests out, and know it: make test SKIP=kubernetes"
        )


def _read(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    if sys.argv[1:] == ["--kept"]:
        sys.exit(not are_kept())
    print(kubernetes_binaries())
