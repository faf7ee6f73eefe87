"""Actions, workflows, commands, docs and lock files keep in step, and pass the checkers that GitHub's users have."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from action_files import ROOT, expected, groups_of_inputs

from disttest.cli.main import command
from disttest.extras.container.command import HandedOnOption, launch
from disttest.extras.github_action.step import INPUTS, Input, InputKind
from disttest.options.flags import PytestOption
from disttest.options.registry import RUN_OPTIONS
from disttest.planning.targets import suite_names
from disttest.plugins.github.outputs import OUTPUTS

ACTIONS = sorted([ROOT / "action.yml", *ROOT.glob("actions/*/action.yml")])
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXAMPLES = sorted((ROOT / "examples").glob("*/.github/workflows/*.yml"))
FILES = [*ACTIONS, *WORKFLOWS, *EXAMPLES]
OWN = "org/dist-tests"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tool(name: str) -> str:
    """A tool of the environment; a missing one is a failure, not a skip."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert found, f"{name} is missing"
    return found


def jobs(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())["jobs"]


def flags_of(one: click.Command) -> set[str]:
    own = [parameter for parameter in one.params if not isinstance(parameter, PytestOption | HandedOnOption)]
    return {flag for parameter in own for flag in parameter.opts if flag.startswith("--")}


@pytest.mark.parametrize("path", sorted(expected()), ids=name_of)
def test_files_say_what_the_code_says(path: Path, update_golden: bool) -> None:
    content = expected()[path]
    if update_golden:
        path.write_text(content)
    assert path.read_text() == content, "run `make action`"


def test_every_option_of_a_run_is_an_input() -> None:
    names = {one.name for one in INPUTS["run"]}
    assert {option.name for option in RUN_OPTIONS if option.inputs} <= names
    # What a log shows is not a choice, nobody can debug it or repeat a failure in it, it ends with its machine, and results
    # are uploaded. The agent of a node gives --assigned.
    flags = flags_of(command.commands["run"])
    assert flags <= {f"--{one.name}" for one in INPUTS["run"]} | {
        "--help",
        "--help-all",
        "--lf",
        "--ff",
        "--progress",
        "--debug-rank",
        "--debugpy",
        "--resident",
        "--keep-results",
        "--one-world",
        "--assigned",
    }


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_is_a_flag_of_its_command(name: str) -> None:
    inner, outer = flags_of(command.commands[name]), flags_of(launch)
    for one in INPUTS[name]:
        assert one.own is None or one.own.flag in inner, one.name
        assert one.launch is None or one.launch.flag in outer, one.name
        assert (one.kind is InputKind.OPTION) == bool(one.own or one.launch), one.name


def test_every_flag_of_launch_is_an_input_or_known_to_be_none() -> None:
    inputs = {f"--{one.name}" for one in INPUTS["run"]}
    # The workspace is GitHub's, the step changes to its directory itself; nobody wants a dry run in a workflow.
    assert flags_of(launch) - inputs == {"--workspace", "--workdir", "--dry-run"}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_have_names_and_variables_of_their_own(name: str) -> None:
    inputs = INPUTS[name]
    assert len({one.name for one in inputs}) == len({one.variable for one in inputs}) == len(inputs)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", one.name) for one in inputs)


@pytest.mark.parametrize("name", INPUTS)
def test_each_input_is_in_one_group_and_the_common_ones_come_first(name: str) -> None:
    groups = groups_of_inputs(name)
    grouped = [one for inputs in groups.values() for one in inputs]
    assert sorted(grouped, key=INPUTS[name].index) == list(INPUTS[name])
    assert next(iter(groups)) == "Common"
    assert len(groups["Common"]) <= 15


@pytest.mark.parametrize("path", ACTIONS, ids=name_of)
def test_inputs_reach_a_script_only_as_variables(path: Path) -> None:
    for step in yaml.safe_load(path.read_text())["runs"].get("steps", []):
        assert "${{" not in step.get("run", ""), step


@pytest.mark.parametrize("path", [*WORKFLOWS, *EXAMPLES], ids=name_of)
def test_no_expression_is_inside_a_script_of_a_workflow(path: Path) -> None:
    for job in jobs(path).values():
        for step in job.get("steps", []):
            assert "${{" not in step.get("run", ""), step


def test_the_step_that_runs_the_program_becomes_it() -> None:
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    (step,) = (step for step in steps if step.get("id") == "run")
    assert step["run"].startswith("exec ")


@pytest.mark.parametrize("path", [*WORKFLOWS, *EXAMPLES], ids=name_of)
def test_workflows_ask_for_little_and_end_in_time(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    assert content["permissions"] == {}
    for name, job in content["jobs"].items():
        assert "uses" in job or "timeout-minutes" in job, name
        for step in job.get("steps", []):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name


@pytest.mark.parametrize("path", [*WORKFLOWS, *EXAMPLES], ids=name_of)
def test_workflows_only_use_inputs_and_outputs_that_exist(path: Path) -> None:
    for job in jobs(path).values():
        for step in job.get("steps", []):
            match = re.fullmatch(rf"(?:{OWN}(/[\w/]+)?@\S+|\./)", step.get("uses", ""))
            if match:
                folder = (match[1] or "").lstrip("/")
                declared = yaml.safe_load((ROOT / folder / "action.yml").read_text())
                assert set(step.get("with", {})) <= set(declared["inputs"]), path
                asked = re.findall(rf"steps\.{step.get('id', '-')}\.outputs\.([\w-]+)", path.read_text())
                assert set(asked) <= set(declared.get("outputs") or {}), path


@pytest.mark.parametrize("name", ["single-runner", "matrix", "arc"])
def test_workflows_that_run_tests_have_the_same_outputs_and_install_projects(name: str) -> None:
    content = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
    called = content[True]["workflow_call"]  # YAML reads the key `on` as true
    assert called["outputs"].keys() == {"conclusion", "infrastructure", "artifact"}
    for output, one in called["outputs"].items():
        (job,) = re.fullmatch(rf"\${{{{ jobs\.(\w+)\.outputs\.{output} }}}}", one["value"]).groups()
        assert output in content["jobs"][job]["outputs"]
    assert "inputs.project" in str(content["jobs"])
    assert "project" in called["inputs"]


def test_artifacts_are_named_by_shard_and_attempt() -> None:
    for path in (*WORKFLOWS, *EXAMPLES):
        for job in jobs(path).values():
            for step in job.get("steps", []):
                if step.get("uses", "").startswith("actions/upload-artifact@"):
                    assert "github.run_attempt" in step["with"]["name"]
                    assert "matrix" not in job.get("strategy", {}) or "matrix." in step["with"]["name"]


def test_the_docker_action_names_this_version() -> None:
    import disttest

    image = yaml.safe_load((ROOT / "actions" / "docker" / "action.yml").read_text())["runs"]["image"]
    assert image == f"docker://ghcr.io/{OWN}:{disttest.__version__}-cuda"


def test_outputs_of_the_docker_action_are_those_of_the_other() -> None:
    assert set(yaml.safe_load((ROOT / "actions" / "docker" / "action.yml").read_text())["outputs"]) == set(
        OUTPUTS
    )


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("vendor.github-actions", ACTIONS),
        ("vendor.github-workflows", [*WORKFLOWS, *EXAMPLES]),
        ("vendor.dependabot", [ROOT / ".github" / "dependabot.yml"]),
    ],
    ids=["actions", "workflows", "dependabot"],
)
def test_schema(schema: str, paths: list[Path]) -> None:
    check(tool("check-jsonschema"), "--builtin-schema", schema, *map(str, paths))


def test_zizmor() -> None:
    check(tool("zizmor"), "--offline", "--no-progress", *(f"./{name_of(path)}" for path in FILES))


def test_zizmor_at_its_strictest_on_actions() -> None:
    """Whoever uses an action runs it with rights of his: an image without a digest needs a reason."""
    check(
        tool("zizmor"),
        "--offline",
        "--no-progress",
        "--persona=pedantic",
        *(f"./{name_of(path)}" for path in ACTIONS),
    )


def test_the_checkers_find_something(tmp_path: Path) -> None:
    bad = tmp_path / ".github" / "workflows" / "bad.yml"
    bad.parent.mkdir(parents=True)
    bad.write_text(
        "on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n"
        "      - run: echo ${{ github.event.issue.title }}\n      - uses: a/b@v1\n        nonsense: 1\n"
    )
    found = [
        run(tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(bad)),
        run(tool("zizmor"), "--offline", "--no-progress", str(bad)),
    ]
    assert [done.returncode != 0 for done in found] == [True] * 2


@pytest.mark.parametrize("path", sorted(ROOT.glob("actions/*/action.yml")), ids=name_of)
def test_each_action_has_a_readme_whose_example_fits_it(path: Path) -> None:
    text = (path.parent / "README.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (step,) = yaml.safe_load(example)
    assert step["uses"] == f"{OWN}/{path.parent.relative_to(ROOT)}@v1"
    assert set(step["with"]) <= set(yaml.safe_load(path.read_text())["inputs"])


def test_bash_scripts_of_the_action_parse() -> None:
    for script in (ROOT / "actions").glob("*.sh"):
        check("bash", "-n", str(script))


def test_programs_are_never_taken_from_a_folder_that_others_can_make(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "actions" / "environment.sh")],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "DISTTEST_PYTHON": "false", "GITHUB_OUTPUT": str(tmp_path / "out")},
        timeout=60,
    )
    assert done.returncode != 0
    assert "RUNNER_TEMP: is not set; this is for steps of a GitHub workflow" in done.stderr
    assert not (tmp_path / "out").exists()


def test_input_is_a_kind_of_its_own() -> None:
    assert Input(name="a-b", help="").variable == "DISTTEST_INPUT_A_B"


def test_every_suite_has_a_rule_in_the_makefile() -> None:
    for name in suite_names():
        check("make", "--dry-run", name)


def check(*words: str) -> None:
    done = run(*words)
    assert done.returncode == 0, done.stdout + done.stderr


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)


def plan_outputs(folder: Path, **inputs: str) -> tuple[int, str]:
    """Run the last step of the action ``plan``, as GitHub's runner does: its exit code, and what it has published."""
    (step,) = [
        step
        for step in yaml.safe_load((ROOT / "actions/plan/action.yml").read_text())["runs"]["steps"]
        if step.get("id") == "matrix"
    ]
    names = {
        "DISTTEST_FOLDER": "working-directory",
        "DISTTEST_MATRIX": "matrix",
        "DISTTEST_PLAN": "output",
    }
    assert step["env"].keys() == names.keys()
    defaults = {"working-directory": ".", "matrix": "matrix.json", "output": "plan.json"}
    environ = {variable: inputs.get(name, defaults[name]) for variable, name in names.items()}
    output = folder / "github-output"
    ended = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "GITHUB_OUTPUT": str(output), **environ},
        check=False,
    )
    return ended.returncode, output.read_text() if output.exists() else ""


def test_the_matrix_of_a_plan_is_found_at_relative_and_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "matrix.json").write_text('{"include": []}\n')
    found = 'matrix={"include": []}\n'

    relative = plan_outputs(tmp_path, **{"working-directory": "below"})
    (tmp_path / "github-output").unlink()
    absolute = plan_outputs(tmp_path, matrix=str(tmp_path / "below" / "matrix.json"), output="/x/plan.json")
    (tmp_path / "github-output").unlink()

    assert (0, f"{found}plan=below/plan.json\n") == relative
    assert (0, f"{found}plan=/x/plan.json\n") == absolute
    assert plan_outputs(tmp_path, matrix="no/such.json") == (1, "")


def test_the_ten_inputs_that_matter_come_first_and_texts_speak_of_inputs() -> None:
    common = [one.name for one in groups_of_inputs("run")["Common"]]

    assert 10 == len(common)
    assert ["suite", "project"] == common[:2]
    assert [] == [
        one.name for rows in INPUTS.values() for one in rows if re.search(r"--[a-z-]+(?![\w=-])", one.help)
    ]
