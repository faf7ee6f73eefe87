"""Standard streams that are closed, full, gone, or never read: what is shown can fail, and nothing else changes by that."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import shlex
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lab import Ended, Lab
from thorough import is_wanted, variants

from disttest.limits import OUTPUT_STALL_S
from disttest.model import Outcome
from hostile import Trial
from hostile.results import LIMIT_S, wait_until

GREEN = """
    import pathlib, time
    def test_green():
        print("x" * 200_000)
        pathlib.Path("begun").touch()
        while pathlib.Path("wait").exists():
            time.sleep(0.01)
"""
FULL = "/dev/full"
SOON_S = OUTPUT_STALL_S - 5
"""Less than it takes to find out that nobody reads."""


def start(
    lab: Lab, *arguments: str, stdout: int | IO[bytes], redirect: str = "", **given: object
) -> subprocess.Popen[bytes]:
    """Start the command with an output of our own, by a shell that redirects."""
    command = f"exec {shlex.join([sys.executable, '-m', 'disttest', *arguments])} {redirect}"
    return subprocess.Popen(
        ["/bin/bash", "-c", command],
        cwd=lab.folder,
        env=lab.environ,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        **{"stderr": subprocess.PIPE, **given},  # type: ignore[call-overload]
    )


def finish(process: subprocess.Popen[bytes], limit_s: float = LIMIT_S) -> tuple[int, str]:
    """Exit code and what came on the error output."""
    try:
        _, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError(f"still running after {limit_s} s") from None
    text = (errors or b"").decode(errors="replace")
    assert "Traceback" not in text, text
    assert "Exception ignored" not in text, text
    return process.returncode, text


@contextlib.contextmanager
def gone_reader() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@contextlib.contextmanager
def silent_reader() -> Iterator[int]:
    """A pipe that is full, and that nobody reads."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 4096)
    os.set_blocking(writer, True)
    yield writer
    os.close(writer)
    os.close(reader)


def check_green(lab: Lab) -> None:
    """The reports of the run are whole."""
    ended = Ended(0, "", lab.folder / "results")
    assert [Outcome.PASSED] == [test.final.outcome for test in ended.run.tests]
    assert ended.run.exit_code == 0
    assert not any("not an event" in note for note in ended.run.notes), ended.run.notes
    assert len(list(ended.junit().iter("testcase"))) == 1
    assert (ended.results / "report.html").exists()


def _gone(lab: Lab) -> None:
    lab.write(test_green=GREEN)
    for words in (
        ("--mask", "s3cret-word", "--", "-v"),
        *variants((), ("--progress", "pytest"), ("--", "-v"), ("--", "-s")),
    ):
        with gone_reader() as writer:
            code, errors = finish(start(lab, "test_green.py", *words, stdout=writer))
        assert code == 0, (words, code, errors)
        check_green(lab)


def _full_disk(lab: Lab) -> None:
    lab.write(test_green=GREEN)
    for words in variants(("--", "-v"), ()):
        with Path(FULL).open("wb") as full:
            code, errors = finish(start(lab, "test_green.py", *words, stdout=full, stderr=full))
        assert code == 0, (words, code, errors)
        check_green(lab)


def _closed(lab: Lab) -> None:
    lab.write(test_green=GREEN)
    for redirect in variants(">&- 2>&- <&-", ">&-", "2>&-", "<&-"):
        for words in ((), ("--", "-s")):
            code, errors = finish(
                start(lab, "test_green.py", *words, stdout=subprocess.DEVNULL, redirect=redirect)
            )
            assert code == 0, (redirect, words, code, errors)
            check_green(lab)


def _never_read(lab: Lab) -> None:
    """Signals and the deadline are heard, in the middle of the run and after it."""
    lab.write(test_green=GREEN)
    for words in variants(("--", "-s"), ()):
        (lab.folder / "begun").unlink(missing_ok=True)
        (lab.folder / "wait").touch()
        with silent_reader() as writer:
            process = start(lab, "test_green.py", *words, stdout=writer)
            wait_until((lab.folder / "begun").exists)
            process.terminate()
            assert finish(process, SOON_S)[0] == 128 + signal.SIGTERM
        assert Ended(0, "", lab.folder / "results").run.exit_code == 128 + signal.SIGTERM

        with silent_reader() as writer:
            process = start(lab, "test_green.py", "--deadline", "8", *words, stdout=writer)
            assert finish(process, SOON_S)[0] == 124

    (lab.folder / "wait").unlink()
    shown = lab.folder / "results" / "report.html"
    shown.unlink(missing_ok=True)
    with silent_reader() as writer:
        process = start(lab, "test_green.py", stdout=writer)
        wait_until(shown.exists)
        check_green(lab)
        process.terminate()
        assert finish(process, SOON_S)[0] == 128 + signal.SIGTERM


def _slow_reader(lab: Lab) -> None:
    """All that was said arrives, however late it is read."""
    lab.write(test_green=GREEN)
    reader, writer = os.pipe()
    process = start(lab, "test_green.py", "--", "-s", stdout=writer, stderr=subprocess.STDOUT)
    os.close(writer)
    wait_until(lambda: struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4))[0] > 60_000)
    with open(reader, "rb") as file:
        output = file.read().decode()
    assert finish(process)[0] == 0
    assert "x" * 200_000 in output
    assert output.rstrip().endswith("disttest: reports and logs in results"), output[-500:]


def _at_terminal(lab: Lab, *words: str, controlling: bool) -> subprocess.Popen[bytes]:
    """A run whose terminal is closed in the middle."""
    lab.write(test_green=GREEN)
    (lab.folder / "wait").touch()
    ours, theirs = pty.openpty()

    def own_terminal() -> None:
        if controlling:
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = start(
        lab,
        "test_green.py",
        *words,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    os.close(theirs)
    os.set_blocking(ours, False)

    def begun() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 65536)
        return (lab.folder / "begun").exists()

    wait_until(begun)
    os.close(ours)
    (lab.folder / "wait").unlink()
    (lab.folder / "begun").unlink()
    return process


def _hang_up(lab: Lab) -> None:
    (lab.folder / "wait").touch()
    for words in variants(("--", "-v"), ()):
        process = _at_terminal(lab, *words, controlling=True)
        assert finish(process)[0] == 128 + signal.SIGHUP
        assert Ended(0, "", lab.folder / "results").run.exit_code == 128 + signal.SIGHUP
        assert (lab.folder / "results" / "junit.xml").exists()


def _terminal_gone(lab: Lab) -> None:
    process = _at_terminal(lab, controlling=False)
    assert finish(process)[0] == 0
    check_green(lab)


def _other_commands(lab: Lab) -> None:
    lab.write(test_green=GREEN)
    assert lab.run("test_green.py").exit_code == 0
    shown = (
        ("list", "test_green.py"),
        ("explain", "results"),
        ("trend", "results"),
        ("plan", "test_green.py", "--pool", "cpu:2:1", "--output", "plan.json"),
        ("--help",),
    )
    written = (("report", "results"), ("merge", "results", "--results", "merged"))
    outputs = (_to_gone_reader, _to_full_disk, _to_closed)
    # Each kind of command meets one of them in turn: planning lists tests, as the first one does.
    in_turn = zip((*shown[:3], shown[4], *written), itertools.cycle(outputs), strict=False)
    for words, check in itertools.product((*shown, *written), outputs) if is_wanted() else in_turn:
        check(lab, words, cut_off=words in shown)


def _to_gone_reader(lab: Lab, words: tuple[str, ...], *, cut_off: bool) -> None:
    with gone_reader() as writer:
        code, errors = finish(start(lab, *words, stdout=writer))
    assert code == (141 if cut_off else 0), (words, code, errors)


def _to_full_disk(lab: Lab, words: tuple[str, ...], *, cut_off: bool) -> None:
    with Path(FULL).open("wb") as full:
        code, errors = finish(start(lab, *words, stdout=full))
    assert code == (3 if cut_off else 0), (words, code, errors)
    assert not cut_off or "could not be written: No space left" in errors, (words, errors)


def _to_closed(lab: Lab, words: tuple[str, ...], *, cut_off: bool) -> None:
    code, errors = finish(start(lab, *words, stdout=subprocess.DEVNULL, redirect=">&-"))
    assert code == (3 if cut_off else 0), (words, code, errors)


TRIALS = (
    Trial(id="stdout-reader-gone", claim="A reader that has gone (| head) changes no verdict.", run=_gone),
    Trial(
        id="stdout-full-disk", claim="Output that has no room (/dev/full) changes no verdict.", run=_full_disk
    ),
    Trial(id="streams-closed", claim="A run with closed standard streams is as any other.", run=_closed),
    Trial(
        id="stdout-never-read",
        claim="Where nobody reads, signals and the deadline end the run as ever, and the reports are there.",
        run=_never_read,
    ),
    Trial(id="stdout-slow-reader", claim="A reader that is slow gets everything.", run=_slow_reader),
    Trial(
        id="terminal-hang-up",
        claim="A hang-up cancels the run with 129, and the reports are there.",
        run=_hang_up,
    ),
    Trial(id="terminal-gone", claim="A terminal that is closed costs the view only.", run=_terminal_gone),
    Trial(
        id="output-of-commands",
        claim="Commands whose output gets lost end with 141 or 3 and a line; those that write files have written them.",
        run=_other_commands,
    ),
)
