"""Files of the project, and their difference from a revision, by git."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from disttest.errors import UsageError
from disttest.extras.changed.limits import GIT_S
from disttest.extras.changed.option_rows import MERGE_BASE
from disttest.extras.changed.sources import FOLDER, LINK, WHOLE, Sources, Unit, parse
from disttest.model import Frozen

_DEFAULT_BRANCHES = ("origin/main", "origin/master", "main", "master")


class Changes(Frozen):
    """The difference between a revision and the files as they are."""

    base: str
    """The commit."""
    head: str
    units: frozenset[Unit]
    """Parts that differ, are new or are gone."""
    renamed: Mapping[str, str]
    """Earlier name of a file -> its name."""


class Repository:
    """The repository that contains a folder.

    Raises:
        UsageError: there is none.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder
        # git() needs a root for this question, so the folder serves as one until the answer is there.
        self.root = Path(self._line("rev-parse", "--show-toplevel"))

    def git(self, *words: str, index: Path | None = None) -> bytes:
        """Return the output of git.

        Raises:
            UsageError: it fails.
        """
        environ = {**os.environ, **({"GIT_INDEX_FILE": str(index)} if index else {})}  # noqa: TID251
        try:
            ended = subprocess.run(
                ["git", "-C", str(self.root), *words],
                capture_output=True,
                timeout=GIT_S,
                check=False,
                env=environ,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"--changed needs git: {error}") from error
        if ended.returncode:
            # git's first line has the reason. Hints follow it.
            said = ended.stderr.decode(errors="replace").strip().partition("\n")[0]
            raise UsageError(f"--changed needs a git repository and its history: git {words[0]}: {said}")
        return ended.stdout

    def _line(self, *words: str) -> str:
        return os.fsdecode(self.git(*words)).strip()

    def _names(self, *words: str, index: Path | None = None) -> list[str]:
        # With -z names are bytes that end with NUL. Otherwise git quotes all that are not ASCII
        # (core.quotePath).
        return [os.fsdecode(name) for name in self.git(*words, index=index).split(b"\0") if name]

    def files(self) -> list[str]:
        """Return the files of the project: all that git does not ignore."""
        # git lists the files of submodules only without --others.
        return [
            *self._names("ls-files", "-z", "--cached", "--recurse-submodules"),
            *self._names("ls-files", "-z", "--others", "--exclude-standard"),
        ]

    def base_of(self, revision: str) -> str:
        """Return the commit to compare with.

        Raises:
            UsageError: the revision is unknown, or none is given and none can be found.
        """
        if revision != MERGE_BASE:
            found = self._find(revision)
            if found is None:
                raise UsageError(
                    f"--changed: git knows no revision {revision!r} here, and no such path exists; list revisions with git log"
                )
            return found
        # Without a revision: the commit at which this branch left the default branch.
        default = self._default_branch()
        branch, head = self._line("rev-parse", "--abbrev-ref", "HEAD"), self._line("rev-parse", "HEAD")
        base = self._line("merge-base", default, "HEAD")
        # CI checks a commit out without a branch, and --abbrev-ref then answers HEAD. The commit is on the
        # default branch if it is its own merge base.
        if branch == default.removeprefix("origin/") or (branch == "HEAD" and base == head):
            raise UsageError(
                f"--changed without a revision on the default branch ({default}) would leave out tests that no other run "
                "makes up for; run all tests, or name a revision: --changed=HEAD~1"
            )
        return base

    def _find(self, revision: str) -> str | None:
        try:
            # Behind --end-of-options a name that begins with a dash is no option.
            return self._line(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
            )
        except UsageError:
            return None

    def _default_branch(self) -> str:
        try:
            # git clone sets it. A repository that CI makes with init and fetch may lack it.
            return self._line("symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD")
        except UsageError:
            pass
        for name in _DEFAULT_BRANCHES:
            if self._find(name) is not None:
                return name
        raise UsageError(
            "--changed finds no default branch (main, master, origin/HEAD); name a revision: --changed=REV"
        )

    def changes_since(self, base: str, sources: Sources) -> Changes:
        """Compare a commit with the files as they are, untracked ones included."""
        units: set[Unit] = set()
        renamed = {}
        for status, old, new in self._diff(base):
            units.update(self._differing(base, old, new, sources))
            if status.startswith("R"):
                renamed[old] = new
            # Added, deleted, renamed, copied: the names in the folders differ, which tests that list a folder
            # can see.
            if status[0] in "ADRC":
                units.update((_folder(file), FOLDER) for file in (old, new))
        return Changes(
            base=base, head=self._line("rev-parse", "HEAD"), units=frozenset(units), renamed=renamed
        )

    def _diff(self, base: str) -> Iterator[tuple[str, str, str]]:
        """Yield the status, the old and the new name of each file that differs."""
        with tempfile.TemporaryDirectory(prefix="disttest-git-") as folder:
            # A copy of the index: git finds the new names of untracked files only among those that it knows.
            index = Path(folder, "index")
            own = self.root / self._line("rev-parse", "--git-path", "index")
            if own.exists():
                shutil.copyfile(own, index)
            self.git("add", "--intent-to-add", "--all", index=index)
            # The output, with NUL for the gaps: `M file`, `A file`, `D file`, `R087 old new`, `C100 old new`.
            # The number is the similarity in per cent.
            words = iter(self._names("diff", "--name-status", "-z", "-M", base, index=index))
        for status in words:
            old = next(words)
            yield status, old, next(words) if status[0] in "RC" else old

    def _differing(self, base: str, old: str, new: str, sources: Sources) -> Iterator[Unit]:
        # A test may read any file as data, also one with Python code.
        yield from ((name, part) for name in (old, new) for part in (WHOLE, LINK))
        if not new.endswith(".py"):
            return
        try:
            before = parse(self.git("show", f"{base}:{old}")).units
        except UsageError:  # a new file
            before = {}
        after = sources.parsed(new).units
        for name in before.keys() | after.keys():
            if before.get(name) != after.get(name):
                yield new, name


def _folder(file: str) -> str:
    parent = PurePosixPath(file).parent.as_posix()
    return "" if parent == "." else parent
