"""Bounded children: whatever they do, the parent goes on."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from disttest.host import bounded
from disttest.host.bounded import BoundedChild, ChildEnd, wait_children
from disttest.host.event_loop import wait_any
from disttest.host.process import INTERNAL_FAILURE

WORKERS = Path(__file__).parents[1] / "support" / "workers"


@pytest.fixture(params=[False, True], ids=["a new interpreter", "a fork"])
def fork(request, monkeypatch):
    """Whether the child is a fork; either finds the module."""
    monkeypatch.setenv("PYTHONPATH", str(WORKERS))
    monkeypatch.syspath_prepend(WORKERS)
    return request.param


@pytest.fixture
def run(fork):
    """Run the child to its end."""

    def to_its_end(how, **bounds):
        heard = []
        bounds.setdefault("timeout_s", 20.0)
        child = BoundedChild("disobedient_child", [how], on_line=heard.append, fork=fork, **bounds)
        wait_children([child])
        return child.ended, heard

    return to_its_end


def test_messages_arrive_and_prints_do_not(run):
    ended, heard = run("say_three")

    assert (ended.end, ended.code) == (ChildEnd.DONE, 0)
    assert heard == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
    assert "printed by Python" in ended.errors
    assert "printed by C" in ended.errors


def test_a_large_message_arrives_whole(run):
    _, heard = run("large")

    assert [len(line) for line in heard] == [3_000_002]


def test_an_exception_is_told(run, fork):
    ended, _ = run("fail")
    code = INTERNAL_FAILURE if fork else 1

    assert (ended.end, ended.code) == (ChildEnd.FAILED, code)
    assert str(ended) == f"exited with code {code}: ValueError: planted"


def test_a_crash_is_told(run):
    ended, _ = run("crash")

    assert (ended.end, ended.signal) == (ChildEnd.SIGNALLED, 11)
    assert str(ended) == "was ended by SIGSEGV"


@pytest.mark.parametrize("how", ["sleep", "ignore_term", "hold_the_gil"])
def test_silence_is_ended(run, how):
    ended, heard = run(how, stall_s=1.0)

    assert ended.end is ChildEnd.STALLED
    assert heard == [b'"ready"']


def test_speaking_keeps_it_alive_but_not_forever(run):
    ended, heard = run("chatter", stall_s=2.0, timeout_s=4.0)

    assert ended.end is ChildEnd.STALLED
    assert ended.elapsed_s >= 4.0
    assert len(heard) > 5


def test_a_flood_on_stderr_blocks_nobody_and_its_end_is_kept(run):
    ended, _ = run("flood")

    assert ended.end is ChildEnd.DONE
    assert ended.errors.endswith("the last line")
    assert len(ended.errors) <= 8192


def test_a_grandchild_does_not_outlive_it(run):
    ended, heard = run("grandchild")

    assert ended.end is ChildEnd.DONE
    process = int(heard[0])
    deadline_s = time.monotonic() + 60.0
    while psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s


def test_the_wait_for_a_child_that_has_closed_its_output_does_not_spin(fork, monkeypatch):
    heard = []
    child = BoundedChild(
        "disobedient_child", ["close_output"], timeout_s=20.0, on_line=heard.append, fork=fork
    )

    def wait(*descriptors, until_s):
        if descriptors == (child._child.fileno(),):  # only its end is awaited
            child.close_input()
        return wait_any(*descriptors, until_s=until_s)

    monkeypatch.setattr(bounded, "wait_any", wait)

    wait_children([child])

    assert child.ended.end is ChildEnd.DONE
    assert heard == [b'"ready"']


def test_several_are_waited_for_together(fork):
    children = [
        BoundedChild("disobedient_child", ["sleep"], timeout_s=20.0, stall_s=1.0, fork=fork) for _ in range(3)
    ]

    wait_children(children)

    assert [child.ended.end for child in children] == [ChildEnd.STALLED] * 3


def test_work_is_sent_and_dismissal_ends_it(fork):
    heard = []
    child = BoundedChild("disobedient_child", ["echo"], timeout_s=20.0, on_line=heard.append, fork=fork)
    child.send({"a": 1}, stall_s=10.0)

    wait_children([child], until=lambda: bool(heard))
    child.close_input()
    wait_children([child])

    assert heard == [b'{"a":1}']
    assert child.ended.end is ChildEnd.DONE


def test_a_file_in_the_current_directory_is_not_imported(run, tmp_path, monkeypatch):
    (tmp_path / "msgspec.py").write_text("raise SystemExit('imported the wrong one')")
    monkeypatch.chdir(tmp_path)

    assert run("say_three")[0].end is ChildEnd.DONE
