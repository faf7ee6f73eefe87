"""A world_size mark counts wherever it stands: a test that asks for ranks never passes without them."""

import pytest

from disttest.model import Outcome

CONFTEST = """
    import pytest

    def pytest_collection_modifyitems(items):
        for item in items:
            if "by_hook" in item.name:
                item.add_marker(pytest.mark.world_size(2))
"""

SUITE = """
    import os
    import unittest
    import pytest
    import torch.distributed as dist

    world_size = pytest.mark.world_size

    def ranks():
        return int(os.environ.get("WORLD_SIZE", 0))

    @pytest.mark.parametrize("expected", [0, pytest.param(1, marks=world_size(1)), pytest.param(2, marks=world_size(2))])
    def test_by_parameter(expected):
        assert ranks() == expected

    @world_size(1)
    @pytest.mark.parametrize("expected", [1, pytest.param(2, marks=world_size(2))])
    def test_a_parameter_overrules_its_function(expected):
        assert ranks() == expected

    def test_by_hook():
        assert ranks() == 2

    @pytest.mark.parametrize("value", ["a", "b"])
    def test_by_hook_with_parameters(value):
        assert ranks() == 2 and value in "ab"

    class TestMethods:
        value = 0

        def test_by_hook(self, tmp_path):
            assert ranks() == 2 and self.value == 0

    class Unittest(unittest.TestCase):
        def test_by_hook(self):
            self.assertEqual(ranks(), 2)

        def test_fails_by_hook(self):
            self.assertEqual(ranks(), 3)
"""

DEEPSPEED = """
    import pytest

    class DistributedTest:  # the part of DeepSpeed's harness that tells its classes apart
        is_dist_test = True
        world_size = 2

    class TestEngine(DistributedTest):
        @pytest.mark.world_size(4)
        def test_step(self):
            import os
            assert "WORLD_SIZE" not in os.environ
"""


@pytest.mark.slow("makes worlds from each kind of mark")
def test_marks_of_parameters_and_hooks_make_worlds(lab):
    ended = lab.write(conftest=CONFTEST, test_marks=SUITE, test_engine=DEEPSPEED).run(
        "--world-sizes", "1,2", "."
    )

    assert {
        "test_by_parameter[0]": Outcome.PASSED,
        "test_by_parameter[1xgloo-1]": Outcome.PASSED,
        "test_by_parameter[2xgloo-2]": Outcome.PASSED,
        "test_a_parameter_overrules_its_function[1xgloo-1]": Outcome.PASSED,
        "test_a_parameter_overrules_its_function[2xgloo-2]": Outcome.PASSED,
        "test_by_hook[2xgloo]": Outcome.PASSED,
        "test_by_hook_with_parameters[2xgloo-a]": Outcome.PASSED,
        "test_by_hook_with_parameters[2xgloo-b]": Outcome.PASSED,
        "TestMethods::test_by_hook[2xgloo]": Outcome.PASSED,
        "Unittest::test_by_hook[2xgloo]": Outcome.PASSED,
        "Unittest::test_fails_by_hook[2xgloo]": Outcome.FAILED,
        "TestEngine::test_step": Outcome.PASSED,
    } == {test.test.nodeid.partition("::")[2]: test.final.outcome for test in ended.run.tests}
    assert ended.exit_code == 1
    assert "repeat: disttest run test_marks.py::Unittest::test_fails_by_hook --world-sizes 2" in ended.output

    again = lab.run("test_marks.py::Unittest::test_fails_by_hook", "--world-sizes", "2")
    assert [test.test.nodeid for test in again.run.tests] == [
        "test_marks.py::Unittest::test_fails_by_hook[2xgloo]"
    ]


TWICE = """
    from pathlib import Path

    import pytest

    def runs(name):
        with Path(__file__).with_name(name).open("a") as file:
            file.write("x")
        return Path(__file__).with_name(name).read_text()

    @pytest.mark.world_size(1)
    def test_world(world):
        runs("world")

    def test_ordinary():
        assert runs("ordinary") != "xx"
"""


def test_a_test_that_a_hook_lists_again_runs_again(lab):
    twice = "def pytest_collection_modifyitems(items):\n    items[:] = items * 2\n"
    ended = lab.write(conftest=twice, test_twice=TWICE).run("test_twice.py")

    assert {
        "test_world[1xgloo]": Outcome.PASSED,
        "test_world[1xgloo]#2": Outcome.PASSED,
        "test_ordinary": Outcome.PASSED,
        "test_ordinary#2": Outcome.FAILED,
    } == {test.test.nodeid.partition("::")[2]: test.final.outcome for test in ended.run.tests}
    assert "xx" == (lab.folder / "world").read_text()


def test_a_world_that_a_hook_changes_too_late_is_refused(lab):
    late = """
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.world_size(1), append=False)
    """
    suite = """
        import pytest

        @pytest.mark.world_size(2)
        def test_it():
            pass
    """
    ended = lab.write(conftest=late, test_late=suite).run("test_late.py")

    assert ended.exit_code == 4
    assert (
        "test_late.py::test_it[2xgloo]: its world_size mark was changed after its worlds were made"
        in ended.output
    )


AT_IMPORT = """
    import os
    import pytest

    SIZE = int(os.environ.get("WORLD_SIZE", "1"))

    @pytest.mark.world_size(2)
    def test_size_at_import():
        assert SIZE == 1 and os.environ["WORLD_SIZE"] == "2"

    @pytest.mark.world_size(2)
    def test_size(world):
        assert SIZE == world.size
"""
A_THREAD = """
    import threading

    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@pytest.mark.parametrize("conftest", ["", A_THREAD], ids=["fork", "interpreter"])
def test_verdicts_are_the_same_however_ranks_are_started(lab, conftest):
    ended = lab.write(conftest=conftest, test_size=AT_IMPORT).run("test_size.py")

    assert {"test_size_at_import": Outcome.PASSED, "test_size": Outcome.FAILED} == {
        test.test.name.partition("[")[0]: test.final.outcome for test in ended.run.tests
    }
    assert "test_size.py:5 reads WORLD_SIZE when it is imported" in ended.output
    assert ("forking is unsafe here" in ended.output) == bool(conftest)


ONE_PROCESS = """
    import pytest
    import torch.distributed as dist

    def test_looks_distributed():
        assert not dist.is_initialized()
"""
OTHERS = """
    import pytest

    @pytest.mark.world_size(2)
    def test_of_another_harness():
        pass
"""


def test_a_green_run_without_a_world_says_so(lab):
    (lab.folder / "theirs").mkdir()
    lab.write(**{"test_one": ONE_PROCESS, "theirs/test_other": OTHERS})
    ended = lab.run("test_one.py", "theirs", DISTTEST_FOREIGN_MARKS="theirs")

    assert ended.exit_code == 0
    assert (
        "no test ran in a world: 2 with torch.distributed, in one process (test_one.py, theirs/test_other.py)."
        in ended.output
    )

    floor = lab.run("test_one.py", "theirs", "--min-worlds", "1", DISTTEST_FOREIGN_MARKS="theirs")
    assert floor.exit_code == 1
    assert "only 0 tests ran in a world and --min-worlds asks for 1" in floor.output


def test_a_run_that_has_nothing_to_do_with_ranks_does_not(lab):
    ended = lab.write(test_plain="def test_it():\n    pass\n").run("test_plain.py")

    assert ended.exit_code == 0 and "no test ran in a world" not in ended.output


def test_the_mark_of_a_module_means_its_test_functions_and_no_doctest(lab):
    lab.write(
        test_documented='''
        """
        >>> 1 + 1
        2
        """
        import pytest

        pytestmark = pytest.mark.world_size(1)

        def test_world(world):
            pass
        '''
    )
    ended = lab.run("test_documented.py", "--", "--doctest-modules")

    assert 0 == ended.exit_code, ended.output
    assert {None, 1} == {test.test.world and test.test.world.size for test in ended.run.tests}
