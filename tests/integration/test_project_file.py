"""``[tool.disttest]`` means the same to the command, to plain pytest and to ``disttest list``, from wherever they start."""

import pytest

TEST = """
    import pytest

    @pytest.mark.world_size()
    def test_world(world):
        assert world.size == 2
"""


@pytest.fixture
def project(lab):
    (lab.folder / "proj").mkdir()
    lab.write(**{"proj/test_x": TEST})

    def write(text):
        (lab.folder / "proj" / "pyproject.toml").write_text(f"[tool.disttest]\n{text}\n")
        return lab

    return write


def found_by(ended):
    return [(result.test.nodeid, result.test.timeout_s) for result in ended.run.tests]


def test_the_command_and_plain_pytest_take_it_and_a_flag_wins(project):
    lab = project("world-sizes = [2]\ntimeout = 77")
    by_command = lab.run("proj/test_x.py")
    by_pytest = lab.pytest("proj/test_x.py", "--disttest-timeout=66", results="out")

    assert (0, 0) == (by_command.exit_code, by_pytest.exit_code), by_command.output + by_pytest.output
    assert [("test_x.py::test_world[2xgloo]", 77.0)] == found_by(by_command)
    assert [("test_x.py::test_world[2xgloo]", 66.0)] == found_by(by_pytest)


def test_list_takes_it(project):
    listed = project('world-sizes = "2"').run("list", "proj", "--tests")

    assert "test_x.py::test_world[2xgloo]" in listed.output
    assert "[1xgloo]" not in listed.output


def test_nonsense_in_it_is_a_usage_error_that_names_file_and_key(project):
    lab = project("timeuot = 5")
    for ended in (lab.run("proj/test_x.py"), lab.pytest("proj/test_x.py")):
        assert ended.exit_code == 4
        assert "proj/pyproject.toml: [tool.disttest] timeuot: unknown setting" in ended.output
        assert "did you mean timeout?" in ended.output
        assert "Traceback" not in ended.output
