"""Stacks confirm what the board says only if every thread is accounted for."""

from __future__ import annotations

import pytest

from disttest.plugins.deadlock.watch import confirm_rest, confirm_waits

TORCH = "/site-packages/torch"
OURS = (
    'File "/x/lib/python3.11/pathlib.py", line 1044 in open',
    'File "/d/disttest/runtime/rank/flight.py", line 45 in _answer',
)
WAIT = (
    'File "/d/disttest/observe/patches.py", line 139 in method',
    f'File "{TORCH}/distributed/d.py", line 3 in all_reduce',
)
ENGINE = (f'File "{TORCH}/autograd/graph.py", line 9 in _engine_run_backward',)
USER = ('File "/home/me/test_step.py", line 7 in hook',)


def thread(ident, *frames, current=False):
    heading = f"{'Current t' if current else 'T'}hread 0x{ident:016x} (most recent call first):"
    return "\n".join([heading, *(f"  {frame}" for frame in frames)])


def dump(*threads):
    return "\n\n".join(threads)


def test_a_rank_that_waits():
    assert confirm_waits(dump(thread(5, *OURS), thread(1, *WAIT, *USER, current=True)), {1: False})


def test_a_thread_that_nobody_knows():
    assert not confirm_waits(dump(thread(2, *USER), thread(1, *WAIT)), {1: False})


def test_a_thread_without_a_frame():
    assert not confirm_waits(dump(thread(2, "<no Python frame>"), thread(1, *WAIT)), {1: False})


def test_the_thread_of_torchs_test_classes_that_answers_questions():
    listens = f'File "{TORCH}/testing/_internal/common_distributed.py", line 1002 in _event_listener'

    assert confirm_waits(dump(thread(2, listens), thread(1, *WAIT)), {1: False})


def test_user_code_runs_within_the_wait():
    assert not confirm_waits(thread(1, *USER, *WAIT), {1: False})


def test_a_thread_that_is_said_to_wait_has_ended():
    assert not confirm_waits(thread(1, *WAIT), {1: False, 2: False})


@pytest.mark.parametrize(("frames", "is_there"), [(ENGINE, True), (WAIT, True), (USER, False)])
def test_whether_a_thread_is_still_in_cpp(frames, is_there):
    assert confirm_waits(thread(1, *frames), {1: True}) is is_there


def test_torch_in_python_is_not_in_cpp():
    assert not confirm_waits(thread(1, f'File "{TORCH}/optim/adam.py", line 3 in step'), {1: True})


def test_no_stacks():
    assert not confirm_waits("", {1: False})
    assert not confirm_rest("")


def test_a_rank_that_has_finished():
    rests = thread(1, 'File "/d/disttest/runtime/messages/protocol.py", line 100 in receive')

    assert confirm_rest(dump(thread(5, *OURS), rests))
    assert not confirm_rest(dump(thread(2, *USER), rests))
