"""Stacks of hanging ranks: source lines of user code for Python's, and native frames.

The source line follows the innermost frame of user code in each thread, as in Python's tracebacks. py-spy reads native
frames only if the user asks for them, because it stops the process and needs ptrace rights.
"""

from __future__ import annotations

import linecache
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from disttest.host.process import Child, end_all, spawn_child, wait_all
from disttest.limits import NATIVE_STACKS_S, RANK_TERM_S
from disttest.results.hang_findings import is_library

# faulthandler's format, without Python's comma before `in`: `  File "/src/test_a.py", line 3 in test_a`.
_FRAME = re.compile(r'^  File "([^"]+)", line (\d{1,9}) in ')
# Bytes of the largest file that is read; larger files are not written by hand.
_MOST_READ = 4 * 1024 * 1024
_LONGEST = 200


def with_code(stacks: str) -> str:
    """Add source lines while the files are available: reports are read on other machines."""
    return "\n\n".join(_with_code(thread) for thread in stacks.split("\n\n"))


def _with_code(thread: str) -> str:
    lines = thread.splitlines()
    for place, frame in enumerate(map(_FRAME.match, lines), 1):
        if frame is not None and not is_library(frame[1]):
            code = _code(Path(frame[1]), int(frame[2]))
            return "\n".join([*lines[:place], *([f"    {code}"] if code else []), *lines[place:]])
    return thread


def _code(file: Path, line: int) -> str:
    try:
        if not file.is_file() or file.stat().st_size > _MOST_READ:
            return ""
    # A broken rank may have written anything as the path.
    except (OSError, ValueError):
        return ""
    # The world is a fork, and inherits cached lines of a file that a test may have rewritten.
    linecache.checkcache(str(file))
    return linecache.getline(str(file), line).strip()[:_LONGEST]


NATIVE_HEADING = "[disttest: native stacks of rank "
_MOST_KEPT = 64 * 1024


def native_stacks(children: Sequence[Child], *, limit_s: float | None = None) -> list[str]:
    """Dump all processes at the same time; an entry explains the reason where there are no stacks."""
    limit_s = NATIVE_STACKS_S if limit_s is None else limit_s
    program = _find_py_spy()
    if program is None:
        return ["py-spy is not installed: pip install 'dist-tests[native]'"] * len(children)
    with tempfile.TemporaryDirectory(prefix="disttest-native-") as folder:
        answers = [Path(folder) / f"{child.pid}.txt" for child in children]
        spies = [_spy(program, child, answer) for child, answer in zip(children, answers, strict=True)]
        wait_all(spies, limit_s)
        late = [spy.poll() is None for spy in spies]
        end_all(spies, term_grace_s=RANK_TERM_S)
        return [
            _read(answer, limit_s if too_late else None)
            for answer, too_late in zip(answers, late, strict=True)
        ]


def _find_py_spy() -> str | None:
    # The folder of the interpreter first: PATH lacks an environment that was not activated.
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def _spy(program: str, child: Child, answer: Path) -> Child:
    with answer.open("wb") as file:
        return spawn_child([program, "dump", "--native", "--pid", str(child.pid)], stdout=file.fileno())


def _read(answer: Path, limit_s: float | None) -> str:
    text = answer.read_bytes()[:_MOST_KEPT].decode("utf-8", "replace").strip()
    if limit_s is not None:
        text += f"\n(py-spy did not finish within {limit_s:g} s)"
    return text.strip() or "py-spy said nothing"
