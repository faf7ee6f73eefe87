"""The MPS daemon of a run, with a stand-in for NVIDIA's control program."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from disttest.host.process import Exit
from disttest.plugins.gpus.shared_gpus import CONTROL, MpsDaemon, answers, usable_daemon

FAKE = str(Path(__file__).parents[1] / "support" / "fake_mps" / CONTROL)


def test_a_daemon_answers_in_directories_of_its_own_until_it_is_ended(tmp_path: Path) -> None:
    daemon = MpsDaemon(tmp_path / "mps", binary=FAKE)
    assert not daemon.lives

    assert "" == daemon.start()
    assert daemon.lives
    assert answers(FAKE, daemon.environment)
    assert {0o700} == {Path(path).stat().st_mode & 0o777 for path in daemon.environment.values()}

    daemon.end()
    assert not daemon.lives
    assert not answers(FAKE, daemon.environment)
    daemon.end()  # a second time does nothing


def test_the_pipe_of_a_killed_daemon_is_no_proof_of_it(tmp_path: Path) -> None:
    daemon = MpsDaemon(tmp_path / "mps", binary=FAKE)
    assert "" == daemon.start()
    child = daemon._child
    assert child is not None

    child.signal(signal.SIGKILL)

    assert Exit(signal=signal.SIGKILL) == child.wait(10)
    assert not daemon.lives
    assert (tmp_path / "mps" / "pipe" / "control").exists()
    assert not answers(FAKE, daemon.environment)
    daemon.end()


def test_a_daemon_that_does_not_start_gives_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS", "broken")
    daemon = MpsDaemon(tmp_path / "mps", binary=FAKE)

    assert f"{CONTROL} ended at once: An instance of this daemon is already running" == daemon.start()
    assert not daemon.lives


def test_reasons_without_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert f"{CONTROL} is not on PATH" == MpsDaemon(tmp_path).start()
    assert "is too long for the sockets of MPS" in MpsDaemon(tmp_path / ("x" * 80), binary=FAKE).start()


def test_a_users_own_daemon_is_used_if_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(FAKE).parent}:{os.environ['PATH']}")
    daemon = MpsDaemon(tmp_path / "mps")
    assert "" == daemon.start()

    assert usable_daemon(daemon.environment)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not usable_daemon(daemon.environment)
    monkeypatch.undo()
    daemon.end()
    assert not usable_daemon(daemon.environment)
