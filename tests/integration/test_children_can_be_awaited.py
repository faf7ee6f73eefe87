"""SIGCHLD that is ignored, inherited so, or handled by a conftest: no exit of a rank or of a child is lost."""

from __future__ import annotations

import sys

import pytest
from lab import Lab

from disttest.model import Outcome

SUITE = """
    import os
    import signal
    import subprocess

    import pytest

    @pytest.mark.world_size(2)
    def test_child(world):
        assert 3 == subprocess.run(["sh", "-c", "exit 3"]).returncode

    @pytest.mark.world_size(2)
    def test_crash(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)

    def test_ordinary():
        assert 3 == subprocess.run(["sh", "-c", "exit 3"]).returncode
"""
IGNORES = "import signal\n\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
REAPS = """
    import os
    import signal

    def reap(*_):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    signal.signal(signal.SIGCHLD, reap)
"""
THOROUGH = pytest.mark.thorough("interpreters that ignore the signal set it back in the same way")
INHERITED = [
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])",
]


@pytest.mark.parametrize(
    ("options", "way"),
    [
        pytest.param([], "inherited", id="forks-inherited"),
        pytest.param([], "ignored", id="forks-ignored"),
        pytest.param([], "reaped", id="forks-reaped"),
        pytest.param(["--spmd", "2"], "ignored", id="interpreters-ignored"),
        *(
            pytest.param(["--spmd", "2"], way, id=f"interpreters-{way}", marks=THOROUGH)
            for way in ("inherited", "reaped")
        ),
    ],
)
def test_no_exit_is_lost(lab: Lab, way: str, options: list[str]) -> None:
    suite = (
        SUITE
        if not options
        else SUITE.replace("@pytest.mark.world_size(2)", "")
        .replace("(world)", "()")
        .replace("world.rank == 1", "os.environ['RANK'] == '1'")
    )
    lab.write(
        test_children=suite,
        **({"conftest": IGNORES if way == "ignored" else REAPS} if way != "inherited" else {}),
    )

    ended = lab.run("test_children.py", *options, wrapper=INHERITED if way == "inherited" else [])

    assert Outcome.PASSED is ended.result("test_child").outcome
    assert "rank 1 of 2 was killed by SIGSEGV" in ended.result("test_crash").message
    if way == "inherited":
        assert Outcome.PASSED is ended.result("test_ordinary").outcome
    assert 1 == ended.exit_code, ended.output
