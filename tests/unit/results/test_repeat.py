"""The command that closes a failure runs that very test: the shell and the command's own parser agree."""

import shlex

import msgspec
import pytest

from disttest.extras.replay.recorded import replay_command, with_recorded
from disttest.model import Hardware, Invocation, Outcome, TestCase, TestResult, WorldKind, WorldShape
from disttest.results.events import RunStarted
from disttest.results.repeat import (
    command_lines,
    keep_pytest_args,
    quote,
    repeat_command,
    variables_of_classes,
)


def case(nodeid="tests/test_a.py::test_a[2xgloo]", world=("gloo", "cpu", 2), kind=WorldKind.RANKS):
    shape = WorldShape(backend=world[0], device=world[1], size=world[2]) if world else None
    return TestCase(
        nodeid=nodeid,
        slug="s",
        classname="c",
        name="n",
        file=nodeid.partition("::")[0],
        line=1,
        suite="s",
        world=shape,
        kind=kind,
    )


def run(root="/repo", **asked):
    return RunStarted(
        at_s=0.0,
        run_id="r",
        argv=(),
        root=root,
        hardware=Hardware(cpus=1),
        slots=1,
        disttest="0",
        invocation=Invocation(**{"cwd": "/repo", **asked}),
    )


def test_the_world_is_the_tests_own():
    assert (
        "disttest run 'tests/test_a.py::test_a[2xgloo]' --world-sizes 2 --backend gloo --device cpu"
        == repeat_command(case(), run())
    )
    assert repeat_command(case(world=("gloo", "cuda", 4)), run()).endswith(
        "--world-sizes 4 --backend gloo --device cuda"
    )
    assert repeat_command(case(world=("nccl", "cuda", 8)), run()).endswith("--world-sizes 8 --backend nccl")


def test_in_launcher_mode_the_size_is_that_of_the_test():
    command = repeat_command(case(), run(options={"spmd": "1,2,4"}))
    assert "disttest run 'tests/test_a.py::test_a[2xgloo]' --spmd 2 --backend gloo --device cpu" == command


def test_a_class_that_starts_its_ranks_has_its_own_size():
    assert "--world-sizes" not in repeat_command(case(kind=WorldKind.MAIN), run())


def test_a_class_of_torchs_kind_gets_the_variables_that_it_reads():
    asked = run(environment={"BACKEND": "gloo", "WORLD_SIZE": "2 or so"})

    assert repeat_command(case(kind=WorldKind.MAIN), asked).startswith(
        "BACKEND=gloo WORLD_SIZE='2 or so' disttest run "
    )
    assert repeat_command(case(), asked).startswith("disttest run ")
    assert {"BACKEND": "x"} == variables_of_classes({"BACKEND": "x", "HOME": "/root"})


def test_a_test_of_a_cluster_is_repeated_there():
    options = {
        "launcher": "slurm",
        "nodes": "2",
        "scheduler-args": "--qos=ci --mem=64G",
        "mount": "/a\n/b:/b",
        "jobs": "7",
        "queue-limit": "9.0",
    }

    command = repeat_command(case(), run(options=options))

    assert command.endswith(
        "--launcher=slurm --nodes=2 '--scheduler-args=--qos=ci --mem=64G' --mount=/a --mount=/b:/b"
    )
    assert "--nodes" not in repeat_command(case(), run(options={"nodes": "2"}))


def test_an_ordinary_test_has_no_world():
    assert "disttest run tests/test_a.py::test_a" == repeat_command(
        case("tests/test_a.py::test_a", world=None), run()
    )


def test_options_that_matter_are_kept_and_others_left_out():
    options = {
        "isolation": "fresh",
        "verdict": "torch",
        "timeout": "7",
        "seed": "3",
        "world-sizes": "1,2,4",
        "backend": "gloo,nccl",
        "results": "out",
        "retries": "2",
        "deadline": "100",
        "flaky": "fail",
    }
    command = repeat_command(case(), run(options=options))

    assert command.endswith(
        "--world-sizes 2 --backend gloo --device cpu --timeout 7 --isolation fresh --seed 3 --verdict torch"
    )


def test_the_path_is_as_seen_from_where_the_run_was_started():
    assert repeat_command(case(), run(cwd="/repo/tests")).startswith("disttest run 'test_a.py::test_a[")
    assert repeat_command(case(), run(cwd="/elsewhere")).startswith("disttest run '../repo/tests/test_a.py::")


def test_a_bundled_suite_goes_by_its_name():
    command = repeat_command(
        case("ddp/test_join.py::test_j[2xgloo]"), run(root="/opt/x/suites", bundled=True)
    )

    assert command.startswith("disttest run 'ddp/test_join.py::test_j[2xgloo]'")


def test_an_old_journal_says_nothing_of_the_invocation():
    assert repeat_command(case(), run(cwd="")).startswith("disttest run 'tests/test_a.py::test_a[2xgloo]' ")


@pytest.mark.parametrize(
    "parameter",
    [
        "a b",
        "a  b",
        "$(touch x)",
        "`x`",
        "it's",
        'say "x"',
        "back\\slash",
        "x;y&z|w",
        "ünï 🔥",
        "*?",
        "!!",
        "-x",
    ],
)
def test_whatever_a_parameter_is_called_the_shell_hands_it_over_whole(parameter):
    nodeid = f"tests/test_a.py::test_a[{parameter}-2xgloo]"

    assert nodeid == shlex.split(repeat_command(case(nodeid), run()))[2]


def test_characters_that_can_not_be_seen_are_escaped_as_bash_reads_them():
    assert r"$'a\x0ab\'c\\d'" == quote("a\nb'c\\d")
    assert r"$'\xff\xed\xa0\x80'" == quote("\udcff\ud800")


def test_arguments_for_pytest_that_only_select_or_print_are_left_out():
    given = [
        "-k",
        "x or y",
        "-x",
        "-o",
        "addopts=",
        "--lf",
        "-m=slow",
        "--my-option",
        "7",
        "--maxfail",
        "2",
        "-v",
    ]

    assert ["-o", "addopts=", "--my-option", "7"] == [*keep_pytest_args(given)]
    assert [] == [*keep_pytest_args(["-p", "disttest.plugin"])]
    assert repeat_command(case(), run(pytest_args=("--my-option", "a b"))).endswith("-- --my-option 'a b'")


def failed(**known):
    return TestResult(nodeid=case().nodeid, outcome=Outcome.FAILED, **known)


@pytest.mark.parametrize(
    ("recorded", "culprit", "rank"), [((0, 1), 1, 1), ((0, 1), None, 0), ((0,), 1, 0), ((1,), None, 1)]
)
def test_the_culprit_is_replayed_where_it_was_recorded(recorded, culprit, rank):
    command = replay_command(case(), with_recorded(failed(culprit=culprit), recorded), run())

    assert f"disttest replay 'tests/test_a.py::test_a[2xgloo]' --rank {rank}" == command


def test_a_replay_names_the_results_that_the_run_did():
    command = replay_command(case(), with_recorded(failed(), (0,)), run(options={"results": "my results"}))

    assert ["disttest", "replay", "my results", case().nodeid] == shlex.split(command)[:4]


def test_a_replay_is_offered_only_where_there_is_a_recording():
    assert [f"repeat: {repeat_command(case(), run())}"] == list(command_lines(case(), failed(), run()))
    assert command_lines(case(), with_recorded(failed(), (0,)), run())[1].startswith(
        "replay: disttest replay "
    )


def failed_after(*nodeids: str) -> TestResult:
    return failed(after=nodeids)


def test_the_tests_before_it_come_first_in_one_world():
    before = ("tests/test_b.py::test_b[2xgloo]", "tests/test_a.py::test_first[2xgloo]")

    (line,) = command_lines(case(), failed_after(*before), run(options={"isolation": "warm"}))

    assert ["repeat:", "disttest", "run", *before, case().nodeid] == shlex.split(line)[:6]
    assert line.endswith("--one-world --isolation warm")


@pytest.mark.parametrize(
    ("test", "asked"),
    [(case(), {"options": {"spmd": "2"}}), (case("test_a.py::test_a", None, WorldKind.PROCESS), {})],
    ids=["spmd", "contained"],
)
def test_those_that_share_processes_anyway_need_no_option(test: TestCase, asked):
    command = repeat_command(test, run(**asked), ("test_a.py::test_first",))

    assert ["test_a.py::test_first", test.nodeid] == shlex.split(command)[2:4]
    assert "--one-world" not in command


def test_a_repetition_is_selected_once():
    repeated = msgspec.structs.replace(case(f"{case().nodeid}#2"), collected_as=case().nodeid)

    command = repeat_command(repeated, run(options={"repeat": "3"}), (case().nodeid,))

    assert [case().nodeid, "--world-sizes"] == shlex.split(command)[2:4]
    assert "--one-world --repeat 3" in command


def test_many_tests_before_it_are_named_by_their_files_in_order():
    before = [f"test_{file}.py::test[2xgloo-{number}]" for file in "cb" for number in range(10)]

    command = repeat_command(case(), run(), before)

    assert ["disttest", "run", "test_c.py", "test_b.py", "tests/test_a.py"] == shlex.split(command)[:5]
