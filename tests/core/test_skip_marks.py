"""Skip marks that only a rank can evaluate, or that are invalid, concern their test alone."""

import pytest

from disttest.model import Cause, Outcome

SUITE = """
    import unittest

    import pytest

    from disttest.testing import skip_if_odd_worldsize, skip_if_small_worldsize

    world_size = pytest.mark.world_size

    @world_size(2)
    @pytest.mark.skipif(True)
    def test_without_a_reason(world):
        pass

    @world_size(2)
    @pytest.mark.skipif("nowhere.to_be_found", reason="never")
    def test_that_raises(world):
        pass

    @world_size(2)
    @pytest.mark.skip(1, 2, 3)
    def test_with_too_many_arguments(world):
        pass

    @world_size(2)
    @pytest.mark.skipif("os.environ.get('WORLD_SIZE') != '2'", reason="needs two ranks")
    def test_of_two_ranks(world):
        assert not "it ran"

    @world_size(2)
    @pytest.mark.skipif("os.environ.get('WORLD_SIZE') == '2'", reason="not with two ranks")
    def test_of_other_worlds(world):
        pass

    @world_size(2)
    @skip_if_small_worldsize
    def test_small(world):
        pass

    @world_size(1)
    @skip_if_odd_worldsize
    def test_odd(world):
        pass

    @world_size(2)
    @skip_if_odd_worldsize
    def test_even(world):
        pass

    class Methods(unittest.TestCase):
        @world_size(2)
        @skip_if_small_worldsize
        def test_method(self):
            pass

    @world_size(1)
    @pytest.mark.parametrize("value", ["a::b"])
    def test_parameter(world, value):
        pass
"""


@pytest.mark.slow("makes a world for most of ten tests")
def test_marks_of_skips_concern_their_test_alone(lab):
    ended = lab.write(test_marks=SUITE).run("test_marks.py")

    assert {
        "test_without_a_reason": Outcome.ERROR,
        "test_that_raises": Outcome.ERROR,
        "test_with_too_many_arguments": Outcome.ERROR,
        "test_of_two_ranks": Outcome.FAILED,
        "test_of_other_worlds": Outcome.SKIPPED,
        "test_small": Outcome.SKIPPED,
        "test_odd": Outcome.SKIPPED,
        "test_even": Outcome.PASSED,
        "test_method": Outcome.SKIPPED,
        "test_parameter": Outcome.PASSED,
    } == {test.test.name.partition("[")[0]: test.final.outcome for test in ended.run.tests}
    assert {Cause.TEST, None} == {test.final.cause for test in ended.run.tests}
    assert "test_parameter[1xgloo-a::b]" in [test.test.name for test in ended.run.tests]
