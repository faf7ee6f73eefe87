"""Warnings and facts that tests record in ranks appear in pytest's summary, junit.xml and results.json."""

import pytest

SUITE = """
    import gc
    import threading
    import unittest
    import warnings

    import pytest
    import torch
    from torch.testing._internal.common_distributed import MultiProcessTestCase, MultiThreadedTestCase

    two = pytest.mark.world_size(2)

    def fail():
        raise OSError(28, "no space for shard 1")

    def run_writer():
        writer = threading.Thread(target=fail, name="writer")
        writer.start()
        writer.join()

    class Careless:
        def __del__(self):
            raise ValueError("not closed")

    @two
    def test_writer_fails(world):
        if world.rank == 1:
            run_writer()

    @two
    @pytest.mark.fresh_world
    def test_fresh(world):
        warnings.warn("seen by all")
        warnings.warn(f"seen by rank {world.rank}", FutureWarning)

    @two
    def test_unraisable(world):
        Careless()
        gc.collect()

    @two
    @pytest.mark.filterwarnings("ignore:not for the summary")
    def test_filtered(world):
        warnings.warn("not for the summary")

    @two
    @pytest.mark.filterwarnings("error")
    def test_strict(world):
        if world.rank == 1:
            warnings.warn("an error here")

    @two
    def test_properties(world, record_property, record_xml_attribute, record_testsuite_property, request):
        record_property("backend", "gloo")
        record_property("loss", 0.5 + world.rank)
        request.node.user_properties.append(("odd", [object()]))
        record_xml_attribute("assertions", "3")
        record_xml_attribute("not a name", "3")
        record_testsuite_property("device", "cpu")
        request.node.add_report_section("call", "monitor", f"seen on rank {world.rank}")

    @two
    @pytest.mark.fresh_world
    def test_in_a_later_fork(world):
        warnings.warn("seen later")

    @two
    def test_subtests(world, subtests):
        for i in range(3):
            with subtests.test("case", i=i):
                assert (world.rank, i) != (1, 2)

    def test_ordinary(record_property, record_xml_attribute, record_testsuite_property, request):
        warnings.warn("of an ordinary test")
        record_property("loss", 0.25)
        record_xml_attribute("assertions", "4")
        record_testsuite_property("host", "here")
        request.node.add_report_section("call", "monitor", "seen in the process")

    class TestPlain(unittest.TestCase):
        def test_sub(self):
            for i in range(3):
                with self.subTest(i=i):
                    self.assertNotEqual(i, 2)

    class TestAdopted(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_adopted(self):
            warnings.warn("of an adopted rank")
            if self.rank == 1:
                run_writer()

    class TestThreads(MultiThreadedTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        def test_step(self):
            warnings.warn("of a thread as rank")
"""


@pytest.fixture(scope="module")
def ended(module_lab):
    return module_lab.write(test_recorded=SUITE).run("test_recorded.py")


def case_of(ended, name):
    (case,) = [each for each in ended.junit().iter("testcase") if each.get("name").startswith(name)]
    return case


def printed(ended, name):
    return case_of(ended, name).findtext("system-out", "")


def properties(element):
    return {each.get("name"): each.get("value") for each in element.iterfind("properties/property")}


def test_only_what_should_fail_fails(ended):
    bad = {test.test.nodeid.rpartition("::")[2].partition("[")[0] for test in ended.run.bad}

    assert {"test_strict", "test_subtests", "test_sub"} == bad, ended.output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("test_writer_fails", "PytestUnhandledThreadExceptionWarning: rank 1: Exception in thread writer"),
        ("test_fresh", "UserWarning: ranks 0, 1: seen by all"),
        ("test_fresh", "FutureWarning: rank 0: seen by rank 0"),
        ("test_fresh", "FutureWarning: rank 1: seen by rank 1"),
        ("test_unraisable", "PytestUnraisableExceptionWarning: ranks 0, 1: Exception ignored in"),
        ("test_ordinary", "UserWarning: of an ordinary test"),
        ("test_adopted", "UserWarning: ranks 0, 1: of an adopted rank"),
        ("test_adopted", "PytestUnhandledThreadExceptionWarning: rank 1: Exception in thread writer"),
        ("test_step", "UserWarning: of a thread as rank"),
    ],
)
def test_warnings_are_in_the_summary_and_in_junit(ended, name, words):
    _, _, summary = ended.output.partition("warnings summary")
    category, _, rest = words.partition(": ")

    assert words in summary, ended.output
    found = printed(ended, name)
    assert category in found and rest.rpartition(": ")[2] in found, found


def test_a_warning_is_told_once(ended):
    _, _, summary = ended.output.partition("warnings summary")

    assert 1 == summary.count(": seen by all")
    assert "ranks 0, 1: ranks 0, 1" not in summary


def test_filters_of_pytest_hold(ended):
    assert "not for the summary" not in ended.output
    assert "rank 1 of 2 failed: UserWarning: an error here" == ended.result("test_strict").message


def test_properties_are_in_junit_by_rank(ended):
    case = case_of(ended, "test_properties")
    found = properties(case)

    assert any(name.startswith("odd") and "<object object at " in value for name, value in found.items())
    assert ("gloo", "0.5", "1.5") == (found["backend"], found["loss[rank 0]"], found["loss[rank 1]"])
    assert "3" == case.get("assertions")
    assert "Captured monitor call[rank 1] -----\nseen on rank 1" in printed(ended, "test_properties")


def test_those_of_ordinary_tests_are_there_too(ended):
    case = case_of(ended, "test_ordinary")

    assert {"loss": "0.25"} == properties(case)
    assert "4" == case.get("assertions")
    assert "seen in the process" in printed(ended, "test_ordinary")


def test_properties_of_the_suite_are_those_of_its_element(ended):
    (suite,) = ended.junit().iter("testsuite")

    assert {"device": "cpu", "host": "here"}.items() <= properties(suite).items()


def test_a_failed_subtest_names_its_parameters(ended):
    assert "rank 1 of 2 failed: [case] (i=2) " in ended.result("test_subtests").message
    assert ended.result("test_sub").message.startswith("(i=2) ")


def test_warnings_of_contained_tests(module_lab, ended):
    del ended  # it uses the same folder
    again = module_lab.run("test_recorded.py", "--isolate-files", "-k", "ordinary", "--results", "again")

    assert "UserWarning: of an ordinary test" in again.output.partition("warnings summary")[2], again.output


def test_warnings_of_ranks_that_collect_by_themselves(lab):
    ended = lab.write(
        test_launched="""
        import os
        import warnings

        def test_step():
            warnings.warn("seen by all")
            warnings.warn(f"seen by rank {os.environ['RANK']}")
        """
    ).run("test_launched.py", "--spmd", "2")
    _, _, summary = ended.output.partition("warnings summary")

    assert "UserWarning: ranks 0, 1: seen by all" in summary, ended.output
    assert "UserWarning: rank 1: seen by rank 1" in summary
