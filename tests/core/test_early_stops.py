"""A run that stops early: failures so far count, and tests that did not start are no errors."""

import pytest

from disttest.model import Outcome

STOPS = """
    import time
    from pathlib import Path

    import pytest

    def wait_for(path):
        while not path.exists():
            time.sleep(0.01)

    @pytest.mark.world_size(1)
    def test_tried_again(world):
        second = Path(__file__).with_name("second")
        if Path(__file__).with_name("first").exists():
            second.touch()
            time.sleep(3600)
        Path(__file__).with_name("first").touch()
        assert not "a first failure"

    @pytest.mark.world_size(1)
    def test_stops(world):
        wait_for(Path(__file__).with_name("second"))
        {stop}
"""


@pytest.mark.parametrize(
    ("stop", "words"),
    [("assert not 'stop', 'here'", ["-x"]), ("pytest.exit('enough')", [])],
    ids=["x", "exit"],
)
def test_a_failure_that_is_being_tried_again_counts(lab, stop, words):
    lab.write(test_stops=STOPS.replace("{stop}", stop))
    retried = ["--retries", "1"] if not words else ["--retries", "1", *words]

    ended = lab.run("test_stops.py", "--isolation", "fresh", *retried, "--slots", "2")

    result = ended.result("test_tried_again")
    assert (Outcome.FAILED, 2) == (result.outcome, result.attempt)
    assert "a first failure" in result.message
    assert "was cut short" in result.message


def test_an_ordinary_test_that_ends_the_run_after_a_subtest_has_failed(lab):
    lab.write(
        test_ends="""
        import pytest

        def test_ends(subtests):
            with subtests.test("a"):
                pass
            pytest.exit("stop")
        """
    )

    result = lab.run("test_ends.py").result("test_ends")

    assert (Outcome.FAILED, "call") == (result.outcome, result.phase)


STEPS = """
    import pytest

    @pytest.mark.world_size(1)
    def test_fails(world):
        assert not "the only failure"

    @pytest.mark.world_size(1)
    def test_follows(world):
        pass

    def test_plain():
        pass
"""


def test_what_stepwise_leaves_out_is_not_run(lab):
    ended = lab.write(test_steps=STEPS).run("test_steps.py", "--slots", "1", "--", "--sw")

    assert Outcome.FAILED is ended.result("test_fails").outcome
    assert Outcome.NOT_RUN is ended.result("test_plain").outcome
    assert [] == [test.test.name for test in ended.run.tests if test.final.outcome is Outcome.ERROR]
