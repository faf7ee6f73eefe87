"""The user's own project as an input of the launch: its folder, requirements and files."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from disttest.errors import UsageError
from disttest.extras.container.limits import GIT_S
from disttest.model import Frozen
from disttest.results.journal import FILE_NAME as JOURNAL

_WORDS = re.compile(r"(?P<folder>.*?)(\[(?P<extras>[A-Za-z0-9._-]+(\s*,\s*[A-Za-z0-9._-]+)*)\])?", re.DOTALL)
_LEFT_OUT = frozenset(
    (".git", "node_modules", "__pycache__", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache")
)
_MARKS = frozenset(("pyvenv.cfg", JOURNAL))
"""Files whose folder is a virtual environment, or the results of a run."""


class Project(Frozen):
    """A project that can be installed."""

    folder: Path
    extras: tuple[str, ...]
    dependencies: tuple[str, ...] = ()
    """Requirements that its pyproject.toml lists, with those of the extras; a backend may add others."""
    build_requires: tuple[str, ...] = ()
    """Requirements of its build, torch aside, if it builds against the image's torch; empty: pip isolates the build."""
    needs_torch: bool = False
    """It builds against torch."""

    @property
    def target(self) -> str:
        """The word for pip, seen from the folder."""
        return f".[{','.join(self.extras)}]" if self.extras else "."

    @property
    def first(self) -> str:
        """A file for pip: the part that can be installed before the project itself."""
        return "".join(f"{line}\n" for line in (*self.build_requires, *self.dependencies))


def read_project(text: str) -> Project:
    """The project that ``DIR[EXTRAS]`` names.

    Raises:
        UsageError: there is none, or its pyproject.toml cannot be read.
    """
    found = _WORDS.fullmatch(text.strip())
    assert found is not None  # every text matches
    folder = Path(found["folder"] or ".").resolve()
    if not any((folder / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise UsageError(
            f"--project {text}: {folder} has neither a pyproject.toml nor a setup.py; give the folder that has, "
            "or use --requirements"
        )
    extras = tuple(re.split(r"\s*,\s*", found["extras"])) if found["extras"] else ()
    table = _read_toml(folder / "pyproject.toml")
    build = [str(one) for one in _strings(table.get("build-system", {}).get("requires"))]
    # pip's isolated build would get a torch from the index, whose ABI may differ from that of the image.
    needs_torch = any(_name(one) == "torch" for one in build) or _imports_torch(folder / "setup.py")
    return Project(
        folder=folder,
        extras=extras,
        dependencies=tuple(_dependencies(table.get("project", {}), extras)),
        build_requires=tuple(one for one in build if _name(one) != "torch") if needs_torch else (),
        needs_torch=needs_torch,
    )


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise UsageError(f"--project: {path} cannot be read: {error}") from error


def _dependencies(table: Mapping[str, Any], extras: tuple[str, ...]) -> Iterator[str]:
    """The requirements that a table [project] lists; an extra of the project itself stays pip's business."""
    optional = table.get("optional-dependencies") or {}
    wanted = {canonicalize_name(extra) for extra in extras}
    own = canonicalize_name(str(table.get("name", "")))
    yield from _strings(table.get("dependencies"))
    for extra, requirements in optional.items():
        if canonicalize_name(extra) in wanted:
            yield from (one for one in _strings(requirements) if _name(one) != own)


def _strings(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _name(requirement: str) -> str:
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return ""  # pip reports the error


def _imports_torch(script: Path) -> bool:
    return script.is_file() and bool(
        re.search(r"^\s*(import|from)\s+torch\b", script.read_text(errors="replace"), re.MULTILINE)
    )


def files_of(folder: Path) -> list[Path]:
    """The files of a project, relative to its folder: those that git knows or does not ignore; without git, all."""
    known = _asked_git(folder)
    listed = _walk(folder) if known is None else known
    # git also lists files deleted since the last commit, and submodules that are not checked out.
    return sorted(path for path in listed if (folder / path).is_symlink() or (folder / path).is_file())


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        if _MARKS & {*names}:
            # A virtual environment, or the results of a run: no sources, here and below.
            folders.clear()
            continue
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        yield from (Path(place, name).relative_to(folder) for name in names)


def _asked_git(folder: Path) -> set[Path] | None:
    """The answer of git, submodules included; None if the folder is not in a repository, or there is no git."""
    found: set[Path] = set()
    # Of another user, too: a launcher that is root reads a runner's checkout.
    # With that, git reads the configuration of a repository that is not this user's. Its core.fsmonitor could
    # name a program, which git would start.
    git = ("git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(folder), "ls-files", "-z")
    for which in (("--cached", "--recurse-submodules"), ("--others", "--exclude-standard")):
        try:
            done = subprocess.run((*git, *which), capture_output=True, check=True, timeout=GIT_S)
        except (OSError, subprocess.SubprocessError):
            return None
        # -z and surrogateescape, since a file name may have any byte but zero and a slash.
        found |= {Path(name) for name in done.stdout.decode(errors="surrogateescape").split("\0") if name}
    return found


def add_files(archive: tarfile.TarFile, folder: Path, names: list[Path], below: str) -> None:
    """Put files into an archive so that equal files make equal archives: no times, no owners."""
    for name in names:
        path = folder / name
        member = tarfile.TarInfo(f"{below}/{name}")
        if path.is_symlink():
            member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
            archive.addfile(member)
            continue
        status = path.stat()
        # Only the executable bit counts, as for git. The umask of the checkout must not change the digest.
        member.size, member.mode = status.st_size, 0o755 if status.st_mode & stat.S_IXUSR else 0o644
        with path.open("rb") as file:
            archive.addfile(member, file)
