"""Checks commits out in a separate work tree, and runs the test there. The user's tree stays as it is."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from disttest.cli.stored_run import read_run
from disttest.errors import ExitCode, UsageError
from disttest.extras.bisect.child_runs import RUN, run_child
from disttest.extras.bisect.import_roots import import_roots
from disttest.extras.bisect.search import Tried
from disttest.extras.history.records import is_quarantined
from disttest.model import Cause
from disttest.reports.text import one_line
from disttest.results.fold import RunResult

# Hooks of the user's repository are for the user's own check-outs.
_GIT = ("git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")


def git(folder: Path, *words: str) -> str:
    """The output of git.

    Raises:
        UsageError: git is not installed, or refuses; the message has its reason.
    """
    try:
        ended = subprocess.run(
            [*_GIT, "-C", str(folder), *words], capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise UsageError(f"git cannot be started: {error.strerror}; install git") from error
    if ended.returncode:
        # git's first line has the reason. Hints follow it.
        reason = ended.stderr.strip().partition("\n")[0] or f"exit code {ended.returncode}"
        raise UsageError(f"git {words[0]} failed: {reason}")
    return ended.stdout.strip()


def commits_between(folder: Path, good: str, bad: str) -> list[str]:
    """The commits from a good one to a bad one, both included. A merge counts as one commit.

    Raises:
        UsageError: one of them does not exist, or the good one is not an ancestor of the bad one.
    """
    first, last = _commit(folder, good), _commit(folder, bad)
    if first == last:
        raise UsageError(f"GOOD and BAD are the same commit, {first[:10]}; give two")
    # The probabilities suppose that all commits after the first bad one are bad, which holds along one line
    # only.
    if git(folder, "merge-base", first, last) != first:
        raise UsageError(
            f"GOOD ({good}) is not an ancestor of BAD ({bad}); give an older commit of the same branch"
        )
    # Without --first-parent the commits of merged branches are in the list. They do not follow each other.
    return [first, *git(folder, "rev-list", "--reverse", "--first-parent", f"{first}..{last}").splitlines()]


def _commit(folder: Path, name: str) -> str:
    try:
        # Behind --end-of-options a name that begins with a dash is no option. ^{commit} peels an annotated
        # tag.
        return git(folder, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    except UsageError as error:
        raise UsageError(f"{name!r} is not a commit here ({error}); give a hash, a tag or a branch") from None


@contextmanager
def work_tree(folder: Path, commit: str) -> Iterator[Path]:
    """A work tree for the time of a search."""
    with tempfile.TemporaryDirectory(prefix="disttest-bisect-") as temporary:
        tree = Path(temporary) / "tree"
        git(folder, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            # git keeps a work tree with changed files unless it is forced, and prepared commits have such
            # files. The repository would list the tree for ever.
            git(folder, "worktree", "remove", "--force", str(tree))


class TestRuns:
    """Runs the test at commits.

    Args:
        repository: root of the user's work tree.
        tree: the work tree of the search.
        prefix: the folder in it that corresponds to the user's.
        words: of ``disttest run``, behind its name; pytest's arguments come last.
        pytest_args: arguments for pytest.
        results: folder for the results of all runs.
        prepare: script that prepares each commit.
        environ: environment of the runs.
    """

    __test__ = False

    def __init__(
        self,
        repository: Path,
        tree: Path,
        prefix: str,
        words: Sequence[str],
        pytest_args: Sequence[str],
        results: Path,
        prepare: Path | None,
        environ: Mapping[str, str],
    ) -> None:
        self._repository, self._tree, self._folder = repository, tree, tree / prefix
        self._words, self._pytest_args = words, pytest_args
        self._results, self._prepare, self._environ = results, prepare, environ
        self._commit, self._batches, self._why_not = "", 0, ""
        self._environ_of_commit = environ

    def run(self, commit: str, times: int, *, until_failure: bool) -> Tried:
        """Run the test at a commit so many times, or until it fails."""
        # Batches of one commit share its check-out, and the results of --prepare.
        if commit != self._commit:
            self._check_out(commit)
        if self._why_not:
            return Tried(why_not=self._why_not)
        self._batches += 1
        into = self._results / f"{self._batches:03}-{commit[:10]}"
        into.mkdir(parents=True)
        options = ["--repeat", str(times), "--results", str(into)]
        argv = [
            *RUN,
            *self._words,
            *options,
            "--",
            # A failure decides, so the rest of the repetitions would be wasted.
            *["-x"] * until_failure,
            *self._pytest_args,
        ]
        output = into.with_suffix(".txt")
        run_child(argv, self._folder, self._environ_of_commit, output)
        tried = read_batch(into)
        if not tried.why_not:
            return tried
        last = output.read_text(errors="replace").strip().rpartition("\n")[2]
        return Tried(why_not=f"{tried.why_not}: {one_line(last, 200)}" if last else tried.why_not)

    def _check_out(self, commit: str) -> None:
        git(self._tree, "checkout", "--quiet", "--force", "--detach", commit)
        # Caches and builds of another commit would decide.
        # Twice -f: once spares nested git repositories. -x also removes ignored files.
        git(self._tree, "clean", "-ffdxq")
        self._commit, self._why_not = commit, ""
        if not self._folder.is_dir():
            self._why_not = "this folder is not in the commit"
        elif self._prepare is not None:
            output = self._results / f"prepare-{commit[:10]}.txt"
            code = run_child(["bash", str(self._prepare)], self._folder, self._environ, output)
            self._why_not = f"{self._prepare.name} ended with exit code {code}" if code else ""
        if not self._why_not:
            # After the script, because it may have installed the commit's code.
            self._environ_of_commit = self._with_import_roots()

    def _with_import_roots(self) -> dict[str, str]:
        """The environment in which the commit's code takes the place of the user's."""
        roots = import_roots(self._repository, self._folder, self._environ)
        paths = [*(str(self._tree / folder) for folder in roots.folders), self._environ.get("PYTHONPATH", "")]
        return {**self._environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def read_batch(results: Path) -> Tried:
    """The result of a batch from its journal. What a broken machine has spoiled says nothing."""
    try:
        run = read_run(results)
    except UsageError:
        return Tried(why_not="the run left no results")
    # A later commit may have put the test in quarantine. Another expected failure is no evidence: good commits may have it.
    failed = sum(
        is_quarantined(test) or (test.final.outcome.is_bad and test.final.cause is not Cause.INFRASTRUCTURE)
        for test in run.tests
    )
    # A skip is no pass: the change may be in the condition of the skip.
    outcomes = [test.final.outcome for test in run.tests]
    passed = sum(outcome.has_run and not outcome.is_failure for outcome in outcomes)
    if failed or passed:
        return Tried(passed=passed, failed=failed)
    return Tried(why_not=_reason(run))


def _reason(run: RunResult) -> str:
    if run.collection_errors:
        return "it cannot be collected"
    if run.exit_code == ExitCode.NOTHING_COLLECTED or not run.tests:
        return "there is no such test"
    return run.reason or "no test ran"
