"""``[tool.disttest]``: the options of every run, found beside the tests, below flags and variables."""

import pytest

from disttest.errors import UsageError
from disttest.options.project_file import FILE_OPTIONS, read_project_settings
from disttest.options.run import resolve_options
from disttest.plugins.gpus.hooks import ALLOW_BUSY_GPUS


@pytest.fixture
def project(tmp_path):
    def write(*lines, folder="."):
        path = tmp_path / folder / "pyproject.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(("[project]", 'name = "x"', "[tool.disttest]", *lines)))
        return path

    write.folder = tmp_path
    return write


def test_values_of_every_kind_become_what_a_flag_would_make_of_them(project):
    path = project(
        "timeout = 60",
        "grace = 0.5",
        "world-sizes = [1, 2]",
        'backend = "gloo"',
        "allow-busy-gpus = true",
        'results = "out"',
    )
    settings = read_project_settings(folder=project.folder)
    options = resolve_options(settings.fill({}, environ={}), environ={})

    assert path == settings.path
    assert (60.0, 0.5, (1, 2), ("gloo",), True, project.folder / "out") == (
        options.timeout, options.grace, options.world_sizes, options.backend, ALLOW_BUSY_GPUS.of(options), options.results
    )  # fmt: skip


def test_a_flag_and_a_variable_win_over_the_file(project):
    project("timeout = 60", "seed = 3", "retries = 1")
    settings = read_project_settings(folder=project.folder)
    environ = {"DISTTEST_SEED": "4", "DISTTEST_RETRIES": ""}
    options = resolve_options(settings.fill({"timeout": "5", "seed": ""}, environ=environ), environ=environ)

    assert (5.0, 4, 1) == (options.timeout, options.seed, options.retries)


def test_the_nearest_file_with_the_table_above_all_targets_counts(project):
    project("seed = 1")
    project("seed = 2", folder="a")
    (project.folder / "a" / "tests").mkdir()
    (project.folder / "a" / "tests" / "pyproject.toml").write_text("[tool.other]\nseed = 3\n")
    (project.folder / "a" / "tests" / "test_x.py").touch()
    (project.folder / "b").mkdir()

    def seed(*targets, folder="."):
        return read_project_settings(targets, project.folder / folder).texts["seed"]

    assert "2" == seed("a/tests/test_x.py::test_y[1-::]")
    assert "1" == seed("a/tests/test_x.py", "b")
    assert "1" == seed("ddp", "no/such/path")
    assert "2" == seed(folder="a/tests")


def test_no_file_no_settings(tmp_path):
    (tmp_path / "pyproject.toml").write_text("this is no TOML, and none of our business")

    assert {} == read_project_settings(folder=tmp_path).texts


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('timeout = "soon"', "timeout: 'soon' is not a number of seconds; 0 means no limit"),
        ("timeout = 1979-05-27", "timeout: datetime.date"),
        ("seed = {a = 1}", "is not N"),
        ("timeuot = 3", "timeuot: unknown setting; did you mean timeout?"),
        ('mask = "x"', "use the variable DISTTEST_MASK"),
        ('launcher = "slurm"', "launcher: unknown setting"),
        ("seed = ", "is not valid TOML"),
    ],
)
def test_nonsense_is_refused_by_file_and_key(project, line, message):
    path = project(line)

    with pytest.raises(UsageError) as refused:
        read_project_settings(folder=project.folder)
    assert str(refused.value).startswith(str(path))
    assert message in str(refused.value)


def test_a_value_in_the_place_of_the_table_is_refused(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool]\ndisttest = 3\n")

    with pytest.raises(UsageError, match=r"tool\.disttest is not a table"):
        read_project_settings(folder=tmp_path)


def test_every_option_of_a_run_but_the_secret_has_a_key():
    assert "mask" not in FILE_OPTIONS
    assert {"timeout", "world-sizes", "results"} <= FILE_OPTIONS.keys()
