"""``disttest init`` writes what a project lacks, and changes nothing that it has."""

import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from disttest.cli.main import command
from disttest.errors import UsageError
from disttest.options.project_file import read_project_settings

WORKFLOW = ".github/workflows/distributed-tests.yml"


def init(folder: Path) -> str:
    ended = CliRunner().invoke(command, ["init", str(folder)], obj=[], prog_name="disttest")
    assert ended.exception is None, ended.output
    return ended.output


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_an_empty_project_gets_all_of_it(tmp_path):
    said = init(tmp_path)
    files = files_of(tmp_path)

    assert {"pyproject.toml", "tests/test_ranks.py", WORKFLOW} == files.keys()
    assert "disttest run tests/test_ranks.py" in said
    assert {"timeout": "120"} == dict(read_project_settings(folder=tmp_path).texts)
    compile(files["tests/test_ranks.py"], "test_ranks.py", "exec")
    steps = yaml.safe_load(files[WORKFLOW])["jobs"]["distributed"]["steps"]
    assert "tests" == steps[1]["with"]["suite"]
    assert "${{ always() && steps.tests.outputs.junit != '' }}" == steps[2]["if"]
    assert not [name for name, text in files.items() if "@tests@" in text or "@path@" in text]


def test_a_second_time_changes_nothing(tmp_path):
    init(tmp_path)
    before = files_of(tmp_path)

    assert 3 == init(tmp_path).count("kept ")
    assert before == files_of(tmp_path)


def test_settings_are_put_behind_those_of_others_and_tests_where_pytest_looks(tmp_path):
    project = '[project]\nname = "mine"\n\n[tool.pytest.ini_options]\ntestpaths = ["checks"]'
    (tmp_path / "pyproject.toml").write_text(project)
    init(tmp_path)

    assert (tmp_path / "pyproject.toml").read_text().startswith(f"{project}\n")
    assert {"timeout": "120"} == dict(read_project_settings(folder=tmp_path).texts)
    assert (tmp_path / "checks" / "test_ranks.py").exists()


@pytest.mark.parametrize("testpaths", ["../elsewhere", "/tmp"])
def test_nothing_is_written_outside_of_the_project(tmp_path, testpaths):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(f'[tool.pytest.ini_options]\ntestpaths = ["{testpaths}"]\n')
    init(folder)

    assert ["project"] == [path.name for path in tmp_path.iterdir()]
    assert (folder / "tests" / "test_ranks.py").exists()


@pytest.mark.parametrize(
    ("files", "project"),
    [
        ({}, None),
        ({"pyproject.toml": "[tool.ruff]\n"}, None),
        ({"pyproject.toml": '[build-system]\nrequires = ["x"]\n'}, "."),
        ({"setup.py": ""}, "."),
        ({"pyproject.toml": '[project]\nname = "mine"\noptional-dependencies.test = ["x"]\n'}, ".[test]"),
    ],
)
def test_the_workflow_installs_the_project(tmp_path, files, project):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    init(tmp_path)

    steps = yaml.safe_load((tmp_path / WORKFLOW).read_text())["jobs"]["distributed"]["steps"]
    assert steps[1]["with"].get("project") == project


def _toml(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[project\nname = 1\n")


def _folder(folder: Path) -> None:
    (folder / "pyproject.toml").mkdir()


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "pyproject.toml")


def _file_above(folder: Path) -> None:
    (folder / "tests").touch()


def _workflows_file(folder: Path) -> None:
    (folder / ".github").touch()


def _link_to_nowhere(folder: Path) -> None:
    (folder / "pyproject.toml").symlink_to("nowhere")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_toml, "pyproject.toml cannot be read as TOML, and settings would be added to it: "),
        (_folder, "pyproject.toml is not a file: move it away"),
        (_pipe, "pyproject.toml is not a file: move it away"),
        (_link_to_nowhere, "pyproject.toml is not a file: move it away"),
        (_file_above, "tests is not a folder, and tests/test_ranks.py belongs into it: move it away"),
        (_workflows_file, ".github is not a folder, and .github/workflows/"),
    ],
)
def test_an_odd_project_is_refused_in_a_line_and_stays_as_it_is(tmp_path, spoil, words):
    spoil(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    ended = CliRunner().invoke(command, ["init", str(tmp_path)], obj=[])

    assert isinstance(ended.exception, UsageError)
    assert words in str(ended.exception)
    assert "\n" not in str(ended.exception)
    assert before == sorted(tmp_path.rglob("*"))


def test_paths_of_tests_that_are_no_list_are_not_used(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\ntestpaths = 3\n")
    init(tmp_path)

    assert (tmp_path / "tests" / "test_ranks.py").exists()
