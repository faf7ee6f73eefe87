"""The action's inputs as a command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttest.errors import UsageError
from disttest.extras.container.container_environment import is_allowed
from disttest.extras.github_action.step import (
    INPUTS,
    Input,
    check_command,
    enter,
    read_inputs,
    secret_variables,
    step_arguments,
)


def _takes_any_text(one: Input) -> bool:
    option = one.own or one.launch
    return option is not None and not (option.many or option.is_switch or option.secret)


HOSTILE = "$(touch x); `id` \"'\n${{ github.token }} --help -x"


def test_a_launched_run() -> None:
    values = {
        "suite": "ddp 'my tests'", "pytest-args": "-k 'a or b'", "world-sizes": "2", "gpus": "all",
        "results": "out", "deadline": "60", "read-only": "true", "env": "A=1\n\n B ", "working-directory": "sub",
    }  # fmt: skip
    assert step_arguments("run", values, in_place=False) == [
        "launch", "--gpus=all", "--deadline=60", "--results=out", "--read-only=true",
        "run", "--world-sizes=2", "ddp", "my tests", "--", "-k", "a or b",
    ]  # fmt: skip
    assert secret_variables("run", values) == {"DISTTEST_ENV": "A=1\n\n B "}


def test_in_place_only_the_run_remains() -> None:
    values = {"suite": "ddp", "gpus": "all", "pull": "never", "results": "out", "seed": "3"}
    assert step_arguments("run", values, in_place=True) == [
        "run", "--gpus=all", "--results=out", "--seed=3", "ddp",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *("network", "read-only", "user", "image", "mount", "env", "time-limit"),
        *("memory", "pids-limit", "shm-size"),
    ],
)
def test_what_only_a_container_gives_is_refused_in_place(name: str) -> None:
    values = {"suite": "ddp", name: "true"}
    with pytest.raises(
        UsageError, match=rf"^input {name}: no container is started here, .*: set in-place to never"
    ):
        step_arguments("run", values, in_place=True)
    assert step_arguments("run", values, in_place=False)[0] == "launch"


def test_hardening_that_is_switched_off_is_no_promise() -> None:
    assert step_arguments("run", {"suite": "ddp", "read-only": "false"}, in_place=True) == ["run", "ddp"]


def test_with_a_launcher_the_run_is_in_place_and_the_image_is_the_nodes() -> None:
    values = {
        "suite": "ddp", "launcher": "slurm", "nodes": "2", "partition": "gpu", "scheduler-args": "--qos=ci --mem=64G",
        "pass-env": "A\n\nB", "image": "ours", "mount": "/data:/data:ro", "container": "docker", "pull": "never",
    }  # fmt: skip
    assert step_arguments("run", values, in_place=True) == [
        "run", "--launcher=slurm", "--nodes=2", "--partition=gpu", "--scheduler-args=--qos=ci --mem=64G",
        "--container=docker", "--pass-env=A", "--pass-env=B", "--image=ours", "--mount=/data:/data:ro", "ddp",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="input launcher: 'slurm' is contacted from the runner"):
        step_arguments("run", values, in_place=False)
    for name in ("project", "requirements", "env", "read-only"):
        with pytest.raises(UsageError, match=f"^input {name}: no container is started here"):
            step_arguments("run", {**values, name: "x"}, in_place=True)


def test_plan_runs_in_the_image_and_merge_on_the_host() -> None:
    plan = step_arguments("plan", {"suite": "t", "pool": "a:1:2\nb:8:1", "image": "x"}, in_place=False)
    assert plan == ["launch", "--image=x", "plan", "--pool=a:1:2", "--pool=b:8:1", "t"]
    merge = step_arguments("merge", {"directories": "a b", "reruns": "TRUE", "results": "m"}, in_place=False)
    assert merge == ["merge", "--reruns=TRUE", "--results=m", "a", "b"]
    assert step_arguments("doctor", {"level": "full"}, in_place=True) == ["doctor", "--level=full"]


def test_empty_and_blank_inputs_are_not_set() -> None:
    environ = {"DISTTEST_INPUT_SUITE": " ddp\n", "DISTTEST_INPUT_GPUS": "", "DISTTEST_INPUT_SEED": "  "}
    assert read_inputs("run", environ) == {"suite": "ddp", "in-place": "auto"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "input suite is empty"),
        ({"suite": "--help"}, "'--help' is a flag"),
        ({"suite": "ddp", "pytest-args": "'open"}, "input pytest-args: No closing quotation"),
        ({"suite": "ddp", "read-only": "yes"}, "input read-only: 'yes' is not true or false"),
    ],
)
def test_nonsense_names_its_input(values: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        step_arguments("run", values, in_place=False)


@pytest.mark.parametrize("name", [one.name for one in INPUTS["run"] if _takes_any_text(one)])
def test_a_value_is_one_word_whatever_is_in_it(name: str) -> None:
    arguments = step_arguments("run", {"suite": "ddp", name: HOSTILE}, in_place=name == "launcher")
    assert [word for word in arguments if HOSTILE in word] == [word for word in arguments if "touch" in word]
    assert sum(HOSTILE in word for word in arguments) == 1


@given(st.text(), st.text(), st.text())
def test_no_text_becomes_a_flag_of_the_launcher(suite: str, pytest_args: str, gpus: str) -> None:
    values = {"suite": suite, "pytest-args": pytest_args, "gpus": gpus}
    try:
        arguments = step_arguments("run", values, in_place=False)
    except UsageError:
        return
    before = arguments[: arguments.index("run")] if gpus != "run" else arguments[:2]
    assert before == (["launch", f"--gpus={gpus}"] if gpus else ["launch"])
    own = arguments[len(before) + 1 :]
    assert not any(word.startswith("-") for word in own[: own.index("--") if "--" in own else None])


def test_commands_and_folders_that_are_none(tmp_path) -> None:
    with pytest.raises(UsageError, match="there are actions for run, plan, merge, doctor"):
        check_command("rm")
    with pytest.raises(UsageError, match="cannot be entered"):
        enter(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="cannot be entered"):
        enter("a\0b")


@pytest.mark.parametrize("in_place", [True, False])
def test_what_is_to_be_masked_travels_as_a_variable(in_place: bool) -> None:
    values = {"suite": "ddp", "mask": "one s3cret\nanother", "retries": "2"}

    assert not any("s3cret" in word for word in step_arguments("run", values, in_place=in_place))
    assert {"DISTTEST_MASK": "one s3cret\nanother"} == secret_variables("run", values)
    assert {} == secret_variables("run", {"suite": "ddp"})
    assert is_allowed("DISTTEST_MASK")


def test_a_switch_that_is_false_says_so() -> None:
    """Nothing would leave the variable of the job in force."""
    assert ["run", "--allow-busy-gpus=false", "ddp"] == step_arguments(
        "run", {"suite": "ddp", "allow-busy-gpus": "false"}, in_place=True
    )


@pytest.mark.parametrize("in_place", [True, False])
def test_a_setup_script_is_the_business_of_the_command_inside(in_place: bool) -> None:
    arguments = step_arguments("run", {"suite": "tests", "setup": "$(id).sh"}, in_place=in_place)
    assert arguments[arguments.index("run") :] == ["run", "--setup=$(id).sh", "tests"]


def test_requirements_are_installed_by_a_launch_only() -> None:
    values = {"suite": "tests", "requirements": "more.txt"}
    assert "--requirements=more.txt" in step_arguments("run", values, in_place=False)
    with pytest.raises(
        UsageError, match=r"input requirements: no container is started here, .*: install in a step before"
    ):
        step_arguments("run", values, in_place=True)
