"""From which folders of the user's repository Python imports: those of the work tree have to take their place.

It runs as a separate program, because a script may have installed something since this process started.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import msgspec

from disttest.errors import UsageError
from disttest.model import Frozen


class ImportRoots(Frozen):
    """The folders of a repository with imported code, and the distributions that are copies of its code."""

    folders: tuple[str, ...] = ()
    """Folders from which Python imports, relative to the repository: those in ``PYTHONPATH`` and of editable installations."""
    copies: tuple[str, ...] = ()
    """Names of distributions that are installed from the repository, but not as editable ones."""


def import_roots(repository: Path, folder: Path, environ: Mapping[str, str]) -> ImportRoots:
    """Return what a run imports from a repository.

    Args:
        repository: root of the work tree of the user.
        folder: working directory of the run.
        environ: environment of the run.

    Raises:
        UsageError: Python cannot start there.
    """
    ended = subprocess.run(
        [sys.executable, "-P", "-m", __name__, str(repository)],
        cwd=folder,
        env=dict(environ),
        capture_output=True,
        check=False,
    )
    if ended.returncode:
        reason = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UsageError(f"cannot find out from where {sys.executable} imports: {reason}")
    return msgspec.json.decode(ended.stdout, type=ImportRoots)


def roots_of_this_process(repository: Path) -> ImportRoots:
    """Look into ``sys.path`` and at the installed distributions."""
    folders = [
        entry
        for entry in map(Path.resolve, map(Path, sys.path))
        # A virtual environment may lie in the repository.
        if entry.is_relative_to(repository) and not _holds_copies(entry)
    ]
    copies = []
    for dist, project in _installed_from(repository):
        sources = [source for source in _sources(dist) if source.is_relative_to(project)]
        folders += sources
        if not sources and not any(folder.is_relative_to(project) for folder in folders):
            copies.append(dist.name)
    relative = dict.fromkeys(str(folder.relative_to(repository)) for folder in folders)
    return ImportRoots(folders=tuple(relative), copies=tuple(sorted(copies)))


def _holds_copies(folder: Path) -> bool:
    return folder.name in ("site-packages", "dist-packages")


def _installed_from(repository: Path) -> Iterator[tuple[Distribution, Path]]:
    """The distributions that were installed from the repository, each with the folder of its project."""
    for dist in distributions():
        # Installers record it: https://packaging.python.org/en/latest/specifications/direct-url/
        url = urlsplit(json.loads(dist.read_text("direct_url.json") or "{}").get("url", ""))
        project = Path(url2pathname(url.path)).resolve()
        if url.scheme == "file" and project.is_relative_to(repository):
            yield dist, project


def _sources(dist: Distribution) -> Iterator[Path]:
    """The folders with the top-level modules of a distribution, if they are its sources.

    setuptools installs a finder where a folder on ``sys.path`` would show more than the project's modules.
    """
    for name in filter(str.isidentifier, (dist.read_text("top_level.txt") or "").split()):
        spec = find_spec(name)  # of a top-level module, which imports nothing
        if spec is not None:
            origin = [spec.origin] if spec.origin and spec.has_location else []
            folders = (Path(place).resolve().parent for place in spec.submodule_search_locations or origin)
            yield from (folder for folder in folders if not _holds_copies(folder))


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(roots_of_this_process(Path(sys.argv[1]).resolve())))
