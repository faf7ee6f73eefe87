"""Find the user's line where a test failed: the innermost one of the culprit, or of a rank that waits for it."""

from __future__ import annotations

import functools
import os.path
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from disttest.model import Outcome, RankRecord, TestResult
from disttest.reports.text import clean
from disttest.results.events import RunStarted
from disttest.results.fold import RunResult, TestOutcome

# pytest: "tests/test_x.py:19: AssertionError" for each frame, innermost last.
_PYTEST = re.compile(r"^(?P<file>[^\s:][^:\n]*\.py):(?P<line>\d{1,9}): ", re.MULTILINE)
# Python: '  File "x.py", line 3, in f', innermost last. faulthandler: without the comma, innermost first.
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9})(?P<comma>,?) in ', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread)\b", re.MULTILINE)
# disttest's frames between torch and the user; the package may be inside the user's repository.
_OURS = re.compile(r"/disttest/(runtime|observe)/")
# A virtual environment inside the repository contains libraries, not the user's code.
_FOREIGN = frozenset({"site-packages", "dist-packages", ".venv", "venv"})


@dataclass(frozen=True, kw_only=True)
class Location:
    """A line of code; the file is relative to the root of the repository."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Repository:
    """Maps paths of the run, which may have been in a container, to paths in the repository."""

    root: str
    """Root directory of the run; files of tests are relative to it."""
    top: str = ""
    """Root of the repository as the run saw it; empty if it is the same."""
    cwd: str = ""
    """Start directory of the run; files of tracebacks are relative to it. Empty if it is the root."""

    @classmethod
    def of(cls, run: RunResult | RunStarted) -> Repository:
        """Return the repository that a run has tested."""
        return cls(root=run.root, top=run.invocation.workspace, cwd=run.invocation.cwd)

    def relative(self, file: str) -> str | None:
        """Return the file of a test relative to the top of the repository; None if it is not the user's."""
        return self._inside(file, self.root)

    def traced(self, file: str) -> str | None:
        """Return the file of a traceback relative to the top of the repository; None if it is not the user's."""
        return self._inside(file, self.cwd or self.root)

    def _inside(self, file: str, base: str) -> str | None:
        # Code without a file, such as "<string>" and "<frozen runpy>", would look like a file in the base folder.
        if file.startswith("<"):
            return None
        whole = os.path.normpath(os.path.join(base or "/", file))  # noqa: PTH118 - a path of another machine
        top = os.path.normpath(self.top or self.root or "/")
        path = PurePosixPath(whole)
        if not path.is_relative_to(top):
            # A workspace may be a symbolic link, and only one of the two names it by the link.
            path, top = PurePosixPath(_real(whole)), _real(top)
        if not path.is_relative_to(top):
            return None
        inside = path.relative_to(top)
        return None if _FOREIGN & set(inside.parts) else str(inside)


# Tracebacks repeat the same files.
_real = functools.lru_cache(maxsize=4096)(os.path.realpath)


def locate(test: TestOutcome, repository: Repository) -> Location | None:
    """Return the line to show next to the code; the test's first line if no better one is known."""
    texts = [*_words(test.final)]
    frames = (frame for text in texts for frame in _innermost(text, test.test.file, repository))
    file = repository.relative(test.test.file) if test.test.file else None
    start = Location(file=file, line=max(1, test.test.line)) if file else None
    return next(frames, start)


def source_line(test: TestOutcome, repository: Repository) -> str:
    """Return the code of that line from the traceback or the stacks; empty if they do not contain it."""
    place = locate(test, repository)
    if place is None:
        return ""
    for text in map(clean, _words(test.final)):
        for match in reversed(list(_PYTEST.finditer(text))):
            if _location(match, repository) == place:
                return _code_at(text, match)
        for match in _FRAME.finditer(text):
            if _location(match, repository) == place:
                return _code_below(text, match)
    return ""


def _code_below(text: str, match: re.Match[str]) -> str:
    """Return the line after a frame if it is code, which Python indents by two more characters."""
    below = text[match.end() :].partition("\n")[2].partition("\n")[0]
    return below.strip() if below.startswith("    ") and not _FRAME.match(below) else ""


def _code_at(text: str, match: re.Match[str]) -> str:
    """Return the code of pytest's entry: marked above the place in a full entry, below it in a short one."""
    # `--tb=short`: "test_x.py:3: in test_sum", and the code in the line below.
    if text.startswith("in ", match.end()):
        return next(iter(text[match.end() :].splitlines()[1:2]), "").strip()
    above = reversed(text[: match.start()].splitlines())
    return next((line[1:].strip() for line in above if line.startswith(">")), "")


def _words(result: TestResult) -> Iterator[str]:
    """Yield the culprit's texts, the most informative first."""
    rank = _accused(result)
    if rank is not None:
        waited = rank.hung or not rank.details
        yield from (rank.all_stacks, rank.details) if waited else (rank.details, rank.all_stacks)
    yield result.details


def _accused(result: TestResult) -> RankRecord | None:
    """Return the culprit; if it left no text, a rank that waits for it shows the missing call."""
    named = [
        rank for rank in result.ranks if rank.rank == result.culprit and rank.outcome is not Outcome.PASSED
    ]
    hung = [rank for rank in result.ranks if rank.hung]
    return next(iter(named or hung), None)


def _innermost(text: str, test_file: str, repository: Repository) -> Iterator[Location]:
    text = clean(text)
    entries = [entry for match in _PYTEST.finditer(text) if (entry := _location(match, repository))]
    if entries:
        yield entries[-1]
    threads = [_frames(thread, repository) for thread in _THREAD.split(text)]
    mine = repository.relative(test_file) if test_file else None
    # The thread that runs the test comes before other threads inside the user's code.
    threads.sort(key=lambda frames: all(frame.file != mine for frame in frames))
    yield from (frames[0] for frames in threads if frames)


def _frames(thread: str, repository: Repository) -> list[Location]:
    """Return the user's frames of one thread, innermost first."""
    matches = list(_FRAME.finditer(thread))
    # Python's own traceback: the innermost frame is the last one.
    if any(match["comma"] for match in matches):
        matches.reverse()
    return [frame for match in matches if (frame := _location(match, repository))]


def _location(match: re.Match[str], repository: Repository) -> Location | None:
    file = None if _OURS.search(match["file"]) else repository.traced(match["file"])
    return Location(file=file, line=max(1, int(match["line"]))) if file else None
