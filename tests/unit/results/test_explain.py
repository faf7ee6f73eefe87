"""One finding for each way to hang, from nothing but what the ranks told."""

import msgspec
import pytest

from disttest.model import LONE_PROCESS, Collective, Outcome, RankEnd, RankRecord, StartedProcess
from disttest.results.hang_findings import explain


def call(
    op,
    seq,
    *,
    group="default",
    done=False,
    inputs="float32[4]",
    where="test_step.py:44",
    backend="gloo",
    ranks=(),
):
    return Collective(
        group=group,
        seq=seq,
        op=op,
        inputs=inputs,
        outputs=inputs,
        done=done,
        where=where,
        backend=backend,
        ranks=ranks,
    )


def stack(function, line, *above):
    frames = [*above, f'  File "/repo/tests/test_step.py", line {line} in {function}']
    return "\n".join(["Current thread (most recent call first):", *frames])


def hung(rank, *collectives, phase="call", **facts):
    return RankRecord(rank=rank, end=RankEnd.KILLED, hung=True, phase=phase, collectives=collectives, **facts)


def finished(rank, *collectives):
    return RankRecord(rank=rank, end=RankEnd.REPORTED, outcome=Outcome.PASSED, collectives=collectives)


def torch_frame(function):
    return f'  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 5 in {function}'


DONE = call("all_reduce", 6, done=True)
SLEEPS = stack("nap", 39)

CASES = {
    "a rank is missing": (
        [
            hung(0, DONE, call("all_reduce", 7)),
            hung(1, DONE, call("all_reduce", 7)),
            hung(2, DONE, stacks=SLEEPS),
            hung(3, DONE, call("all_reduce", 7)),
        ],
        "rank 2 never joined all_reduce #7 (group default): ranks 0, 1, 3 wait at test_step.py:44, "
        "rank 2 is in nap at test_step.py:39",
        2,
    ),
    "a rank has finished without it": (
        [hung(0, call("barrier", 1)), finished(1)],
        "rank 1 never joined barrier #1 (group default): rank 0 waits at test_step.py:44, "
        "rank 1 had finished the test",
        1,
    ),
    "a rank has skipped the test": (
        [
            hung(0, call("barrier", 1)),
            msgspec.structs.replace(finished(1), outcome=Outcome.SKIPPED, message="no GPU here"),
        ],
        "rank 1 never joined barrier #1 (group default): rank 0 waits at test_step.py:44, "
        "rank 1 had skipped the test (no GPU here)",
        1,
    ),
    "two ranks are missing": (
        [hung(0, call("barrier", 1)), hung(1, stacks=SLEEPS), finished(2)],
        "ranks 1, 2 never joined barrier #1 (group default): rank 0 waits at test_step.py:44, "
        "rank 1 is in nap at test_step.py:39, rank 2 had finished the test",
        None,
    ),
    "calls that NCCL has queued behind the one that waits": (
        [
            hung(
                0, DONE, *(call("all_reduce", seq, where=f"a.py:{seq}", backend="nccl") for seq in (7, 8, 9))
            ),
            finished(1, DONE),
        ],
        "rank 1 never joined all_reduce #7 (group default): rank 0 waits at a.py:7, rank 1 had finished the test",
        1,
    ),
    "a GPU does not come to the end of the test's work": (
        [
            hung(
                0,
                phase="teardown",
                stacks="Current thread (most recent call first):\n"
                '  File "/venv/site-packages/torch/cuda/__init__.py", line 5 in synchronize',
            ),
            finished(1),
        ],
        "the test finished, its tear-down hangs: rank 0 waits for its GPU to finish what the test has started there; "
        "rank 1 had finished",
        0,
    ),
    "the place comes from the stack": (
        [
            hung(0, call("barrier", 1, where=""), stacks=stack("test_x", 12, torch_frame("barrier"))),
            finished(1),
        ],
        "rank 1 never joined barrier #1 (group default): rank 0 waits at test_step.py:12, "
        "rank 1 had finished the test",
        1,
    ),
    "different operations": (
        [hung(0, call("broadcast", 3, where="a.py:1")), hung(1, call("all_reduce", 3, where="a.py:2"))],
        "ranks disagree at collective #3 of group default: rank 0 called broadcast at a.py:1, "
        "rank 1 called all_reduce at a.py:2",
        None,
    ),
    "a different operation that is over": (
        [hung(0, call("broadcast", 3)), hung(1, call("barrier", 3, done=True), call("all_reduce", 4))],
        "ranks disagree at collective #3 of group default: rank 0 called broadcast at test_step.py:44, "
        "rank 1 called barrier at test_step.py:44",
        None,
    ),
    "different shapes": (
        [
            hung(0, call("all_reduce", 3, inputs="float32[4]")),
            hung(1, call("all_reduce", 3, inputs="float64[5]")),
        ],
        "ranks disagree at collective #3 of group default: "
        "rank 0 called all_reduce of float32[4] at test_step.py:44, "
        "rank 1 called all_reduce of float64[5] at test_step.py:44",
        None,
    ),
    "two groups": (
        [hung(0, call("all_reduce", 1, group="a")), hung(1, call("all_reduce", 1, group="b"))],
        "groups wait for each other: rank 0 waits in all_reduce #1 (group a) at test_step.py:44, "
        "rank 1 waits in all_reduce #1 (group b) at test_step.py:44",
        None,
    ),
    "a rank for which others wait in two groups": (
        [
            hung(0, call("all_reduce", 1, group="dp")),
            hung(1, call("all_reduce", 1, group="tp")),
            hung(2, stacks=SLEEPS),
        ],
        "rank 2 joined no group: rank 2 is in nap at test_step.py:39, "
        "while rank 0 waits in all_reduce #1 (group dp) at test_step.py:44, "
        "rank 1 waits in all_reduce #1 (group tp) at test_step.py:44",
        2,
    ),
    "ranks that finished while others wait in two groups": (
        [
            hung(0, call("all_reduce", 1, group="tp", ranks=(0, 1))),
            finished(1),
            hung(2, call("all_reduce", 1, group="tp", ranks=(2, 3))),
            finished(3),
        ],
        "ranks 1, 3 joined no group: rank 1 had finished the test, rank 3 had finished the test, "
        "while rank 0 waits in all_reduce #1 (group tp) at test_step.py:44, "
        "rank 2 waits in all_reduce #1 (group tp) at test_step.py:44",
        None,
    ),
    "a rank outside of the group is not missing": (
        [finished(0), hung(1, call("barrier", 1, group="#1", ranks=(1, 2))), hung(2, stacks=SLEEPS)],
        "rank 2 never joined barrier #1 (group #1): rank 1 waits at test_step.py:44, rank 2 is in nap at test_step.py:39",
        2,
    ),
    "groups of a mesh have one description": (
        [
            finished(0, call("broadcast", 1, group="mesh_tp", ranks=(0, 1), done=True)),
            finished(1, call("broadcast", 1, group="mesh_tp", done=True)),
            hung(2, call("all_reduce", 1, group="mesh_tp", ranks=(2, 3))),
            hung(3, stacks=SLEEPS),
        ],
        "rank 3 never joined all_reduce #1 (group mesh_tp): rank 2 waits at test_step.py:44, "
        "rank 3 is in nap at test_step.py:39",
        3,
    ),
    "everybody is there": (
        [hung(0, call("all_reduce", 2)), hung(1, call("all_reduce", 2))],
        "all_reduce #2 (group default) does not complete, although ranks 0, 1 called it at test_step.py:44",
        None,
    ),
    "point to point": (
        [
            hung(0, stacks=stack("ping", 7, torch_frame("recv"))),
            hung(1, stacks=stack("pong", 9, torch_frame("recv"))),
        ],
        "point-to-point calls that do not match: rank 0 waits in recv at test_step.py:7, "
        "rank 1 waits in recv at test_step.py:9",
        None,
    ),
    "tear-down": (
        [hung(0, phase="teardown", stacks=stack("fixture", 5)), finished(1)],
        "the test finished, its tear-down hangs: rank 0 is in fixture at test_step.py:5; rank 1 had finished",
        0,
    ),
    "stopped, while others wait": (
        [hung(0, call("barrier", 1)), hung(1, process_state="stopped (SIGSTOP, or a debugger)")],
        "rank 1 never joined barrier #1 (group default): rank 0 waits at test_step.py:44, "
        "rank 1 is stopped (SIGSTOP, or a debugger), in call",
        1,
    ),
    "stopped, and nobody waits": (
        [hung(0, process_state="stopped (SIGSTOP, or a debugger)"), finished(1)],
        "rank 0 is stopped (SIGSTOP, or a debugger), in call, not waiting for another rank; rank 1 had finished",
        0,
    ),
    "waits for its GPU": (
        [
            hung(
                0,
                stacks=stack(
                    "step", 8, '  File "/venv/site-packages/torch/cuda/streams.py", line 5 in synchronize'
                ),
            )
        ],
        "rank 0 waits for its GPU in step at test_step.py:8, not waiting for another rank",
        0,
    ),
    "slow in Python": (
        [hung(0, DONE, stacks=SLEEPS), finished(1, DONE)],
        "rank 0 is in nap at test_step.py:39, not waiting for another rank; rank 1 had finished",
        0,
    ),
}


@pytest.mark.parametrize(("ranks", "message", "culprit"), CASES.values(), ids=CASES)
def test_findings(ranks, message, culprit):
    assert (message, culprit) == explain(ranks)


def test_nothing_known_is_no_finding():
    assert explain([hung(0), hung(1)]) is None


def test_uneven_collectives_may_have_different_shapes():
    ranks = [hung(r, call("all_to_all_single", 1, inputs=f"float32[{r}]")) for r in range(2)]

    assert "does not complete" in explain(ranks).message


def test_the_main_thread_is_the_one_that_is_told():
    threads = 'Thread (most recent call first):\n  File "/repo/background.py", line 1 in poll\n\n' + SLEEPS

    assert "nap at test_step.py:39" in explain([hung(0, stacks=threads)]).message


def test_a_process_that_the_test_started_is_named_by_its_role_or_its_number() -> None:
    started = (
        StartedProcess(pid=12, role="loader", stacks=stack("load", 7)),
        StartedProcess(pid=13, command="python -c …", stacks=stack("work", 8)),
        StartedProcess(pid=14, command="sleep 60"),
    )
    record = hung(LONE_PROCESS, stacks=stack("test_waits", 3), started=started)

    finding = explain([record])

    assert finding is not None
    assert (
        "loader (process 12) is in load at test_step.py:7; process 13 is in work at test_step.py:8; "
        "its process is in test_waits at test_step.py:3"
    ) == finding.message
    assert record.all_stacks.endswith("process 14 (sleep 60):\n  (its Python stack is not available)")


OF_THE_USER = '  File "/repo/torch/cuda/streams.py", line 5 in '
"""In a folder of the user that is called torch."""


@pytest.mark.parametrize("function", ["send", "synchronize"])
def test_functions_of_the_user_may_have_the_names_of_torchs(function):
    finding = explain([hung(rank, stacks=stack("step", 8, OF_THE_USER + function)) for rank in (0, 1)])
    assert finding is not None
    assert (
        f"rank 0 is in {function} at streams.py:5, rank 1 is in {function} at streams.py:5" in finding.message
    )


def test_a_folder_of_the_user_may_be_called_torch():
    mine = [
        each.replace("/repo/tests/", "/repo/tests/torch/")
        for each in (stack("step", 8, torch_frame("all_reduce")), SLEEPS)
    ]
    finding = explain([hung(0, stacks=mine[0]), hung(1, stacks=mine[1])])
    assert finding == ("rank 0 waits in all_reduce at test_step.py:8, rank 1 is in nap at test_step.py:39", 1)
