"""A test that fails in several phases or subtests: each failure is in the reports."""

import pytest

SUITE = """
    import pytest
    from disttest.testing import MultiProcessTestCase

    two = pytest.mark.world_size(2)

    @pytest.fixture
    def cleans_up():
        yield
        raise RuntimeError("the clean-up has failed")

    @two
    def test_world(world, cleans_up):
        assert not world, "the call has failed"

    def test_ordinary(cleans_up):
        assert not "the call has failed"

    class TestClass(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def tearDown(self):
            super().tearDown()
            raise RuntimeError("the clean-up has failed")

        def test_class(self):
            assert self.rank == 0, "the call has failed"
"""
WITH_SUBTESTS = """
    def test_subtests(subtests):
        for number in range(3):
            with subtests.test(number=number):
                assert not number + 1, f"number {number} is wrong"

    @two
    def test_subtests_of_ranks(world, subtests):
        for number in range(3):
            with subtests.test(number=number):
                assert not number + 1, f"number {number} is wrong"
"""
"""Fixtures of pytest 9."""
HAS_SUBTESTS = int(pytest.__version__.partition(".")[0]) >= 9


@pytest.fixture(scope="module")
def ended(module_lab):
    return module_lab.write(test_fails=SUITE + (WITH_SUBTESTS if HAS_SUBTESTS else "")).run("test_fails.py")


@pytest.mark.parametrize(
    ("name", "where"),
    [("test_world", "ranks 0, 1, teardown: "), ("test_ordinary", "teardown: "), ("test_class", "teardown: ")],
)
def test_a_failing_clean_up_is_told_beside_the_failure_of_the_call(ended, name, where):
    result = ended.result(name)

    assert "the call has failed" in result.message + result.details
    (section,) = result.sections.values()
    assert f"{where}RuntimeError: the clean-up has failed" in section.lines
    (case,) = [case for case in ended.junit().iter("testcase") if name in case.get("name", "")]
    assert "the clean-up has failed" in "".join(case.itertext())


@pytest.mark.skipif(not HAS_SUBTESTS, reason="pytest has no subtests")
@pytest.mark.parametrize(("name", "who"), [("test_subtests", ""), ("test_subtests_of_ranks", "ranks 0, 1, ")])
def test_each_failed_subtest_is_told(ended, name, who):
    result = ended.result(f"::{name}[2xgloo]" if who else f"::{name}")

    assert "(number=0)" in result.message
    (section,) = result.sections.values()
    heads = [line for line in section.lines if not line.startswith(" ")]
    # pytest may add how many they are.
    for head, number in zip(heads, (1, 2), strict=False):
        assert head.startswith(f"{who}call: (number={number}) AssertionError: number {number} is wrong")


def test_the_terminal_shows_it(ended):
    assert "also failed" in ended.output
    assert "the clean-up has failed" in ended.output
