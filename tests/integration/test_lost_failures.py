"""A failure is reported although its report cannot be rendered, or although it is still on its way when the test ends."""

import pytest
from lab import Ended, Lab

from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

VALUES = """
    import time, unittest
    import pytest, torch, torch.distributed as dist

    def gather():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, 1)
        return str(parts)

    def wait():
        time.sleep(600)
        return ""

    class Value:
        def __init__(self, text):
            self.text = text
        def __eq__(self, other):
            return False
        def __hash__(self):
            return 1
        def __repr__(self):
            return self.text()

    class Error(Exception):
        def __str__(self):
            return self.text()
"""
RENDERINGS = (
    VALUES
    + """
    pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(60)]

    @pytest.fixture
    def value():
        return Value(gather)

    def read(value):
        raise ValueError("checkpoint shard 1 is corrupt")

    def test_argument(world):
        if world.rank == 1:
            read(Value(gather))

    def test_fixture(world, value):
        if world.rank == 1:
            raise ValueError("checkpoint shard 1 is corrupt")

    def test_operand(world):
        if world.rank == 1:
            assert Value(gather) == 0.0

    def test_message(world):
        if world.rank == 1:
            assert world.rank == 0, Value(gather)

    def test_text_of_the_exception(world):
        if world.rank == 1:
            error = Error("the text is in the arguments", 1)
            error.text = gather
            raise error

    @pytest.fixture
    def broken(world):
        if world.rank == 1:
            read(Value(gather))

    def test_setup(world, broken):
        pass

    @pytest.fixture
    def breaks(world):
        yield
        if world.rank == 1:
            read(Value(gather))

    def test_teardown(world, breaks):
        pass

    @pytest.mark.xfail(raises=ValueError)
    def test_expected(world):
        if world.rank == 1:
            read(Value(gather))

    def test_no_failure(world):
        with pytest.raises(ValueError):
            read(Value(gather))

    @pytest.mark.timeout(3)
    def test_slow(world):
        if world.rank == 1:
            read(Value(wait))

    @pytest.mark.timeout(3)
    def test_slow_operand(world):
        if world.rank == 1:
            assert Value(wait) == 0.0

    class Test(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def prepare(self, world):
            self.world = world

        def test_unittest_operand(self):
            if self.world.rank == 1:
                self.assertEqual(Value(gather), 0.0)

        def test_unittest(self):
            if self.world.rank == 1:
                read(Value(gather))
    """
)
CORRUPT = "ValueError: checkpoint shard 1 is corrupt"
RENDERED = {
    "test_argument": f"rank 1 of 2 failed: {CORRUPT}",
    "test_fixture": f"rank 1 of 2 failed: {CORRUPT}",
    "test_operand": "rank 1 of 2 failed: AssertionError: assert Value(gather) == 0.0",
    "test_message": "rank 1 of 2 failed: AssertionError: assert world.rank == 0, Value(gather)",
    "test_text_of_the_exception": "rank 1 of 2 failed: Error: the text is in the arguments",
    "test_setup": f"rank 1 of 2 failed in setup: {CORRUPT}",
    "test_teardown": f"rank 1 of 2 failed in teardown: {CORRUPT}",
    "test_slow": f"rank 1 of 2 failed: {CORRUPT}",
    "test_slow_operand": "rank 1 of 2 failed: AssertionError: assert Value(wait) == 0.0",
    "test_unittest_operand": "rank 1 of 2 failed: AssertionError: self.assertEqual(Value(gather), 0.0)",
    "test_unittest": f"rank 1 of 2 failed: {CORRUPT}",
}


@pytest.fixture(scope="module")
def rendered(module_lab: Lab) -> Ended:
    module_lab.write(test_rendered=RENDERINGS)
    return module_lab.run("run", "test_rendered.py", "--results", "results", "--slots", "4")


@pytest.mark.parametrize(("name", "message"), RENDERED.items())
def test_a_failure_whose_rendering_waits_names_the_exception(rendered, name, message):
    result = rendered.result(name)

    assert (result.message, result.culprit) == (message, 1)
    assert result.ranks[1].unrendered
    assert any("rank 1 could not render its report" in note for note in result.notes)
    assert "test_rendered.py" in result.details


def test_an_expected_failure_whose_rendering_waits_is_expected(rendered):
    assert rendered.result("test_expected").outcome is Outcome.XFAILED


def test_an_exception_that_the_test_catches_is_no_failure(rendered):
    assert rendered.result("test_no_failure").outcome is Outcome.PASSED


FLIGHTS = (
    VALUES
    + """
    pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(60)]

    def fail(world):
        if world.rank == 1:
            raise ValueError("shard 1 is corrupt")

    def test_finally(world):
        try:
            fail(world)
        finally:
            if world.rank == 1:
                dist.barrier()

    class Leaves:
        def __enter__(self):
            pass
        def __exit__(self, kind, error, traceback):
            if error:
                dist.barrier()

    def test_with(world):
        with Leaves():
            fail(world)

    def test_except(world):
        try:
            fail(world)
        except ValueError:
            dist.barrier()
            raise

    @pytest.fixture
    def teardown(world):
        yield
        if world.rank == 1:
            dist.barrier()

    def test_fixture_teardown(world, teardown):
        fail(world)

    @pytest.fixture
    def broken(teardown, world):
        yield
        fail(world)

    def test_finalizers(world, broken):
        pass

    class Test(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def prepare(self, world):
            self.world = world

        def clean(self):
            if self.world.rank == 1:
                dist.barrier()

        def test_add_cleanup(self):
            self.addCleanup(self.clean)
            fail(self.world)

    class TestTearDown(Test):
        test_add_cleanup = None

        def tearDown(self):
            self.clean()

        def test_tear_down(self):
            fail(self.world)

    @pytest.mark.timeout(3)
    def test_limit(world):
        try:
            fail(world)
        finally:
            if world.rank == 1:
                wait()

    def test_handled(world):
        try:
            fail(world)
        except ValueError:
            pass
        dist.barrier() if world.rank == 1 else None
    """
)
FLOWN = (
    "test_finally",
    "test_with",
    "test_except",
    "test_finalizers",
    "test_add_cleanup",
    "test_tear_down",
    "test_limit",
)
RAISED = "rank 1 of 2 raised ValueError: shard 1 is corrupt at test_flight.py:"


@pytest.fixture(scope="module")
def flown(module_lab: Lab) -> Ended:
    module_lab.write(test_flight=FLIGHTS)
    return module_lab.run("run", "test_flight.py", "--results", "flight", "--slots", "4")


@pytest.fixture
def in_flight(flown: Ended) -> Ended:
    return Ended(flown.exit_code, flown.output, flown.results.with_name("flight"))


@pytest.mark.parametrize("name", FLOWN)
def test_an_exception_on_its_way_comes_before_the_wait_that_holds_it_back(in_flight, name):
    result = in_flight.result(name)

    assert result.message.startswith(RAISED)
    assert "deadlock: rank" in result.message or name == "test_limit"
    assert result.culprit == 1
    assert "raise ValueError" in result.details


def test_a_failure_is_reported_before_its_fixtures_are_torn_down(in_flight):
    assert (
        in_flight.result("test_fixture_teardown").message
        == "rank 1 of 2 failed: ValueError: shard 1 is corrupt"
    )


def test_an_exception_that_was_handled_is_not_blamed(in_flight):
    assert in_flight.result("test_handled").message.startswith("deadlock: rank")


ORDINARY = (
    VALUES
    + """
    pytestmark = pytest.mark.timeout(2)

    def read(value):
        raise ValueError("checkpoint shard 1 is corrupt")

    def test_argument():
        read(Value(wait))

    def test_operands():
        assert Value(wait) == Value(wait)

    def test_text_of_the_exception():
        error = Error("the text is in the arguments")
        error.text = wait
        raise error

    @pytest.mark.xfail(raises=ValueError)
    def test_expected():
        read(Value(wait))

    def test_next():
        pass
    """
)


@pytest.mark.parametrize("options", [(), ("--isolate-files",)], ids=["in the pytest process", "contained"])
def test_the_limit_of_an_ordinary_test_covers_its_rendering(lab, options):
    lab.write(test_ordinary=ORDINARY)
    ended = lab.run("run", "test_ordinary.py", "--results", "results", *options, limit_s=100)

    assert CORRUPT in ended.result("::test_argument").message
    assert "test_ordinary.py" in ended.result("::test_argument").details
    assert ended.result("::test_operands").outcome is Outcome.FAILED
    assert "Error" in ended.result("::test_text_of_the_exception").message
    assert ended.result("::test_expected").outcome is Outcome.XFAILED
    assert ended.result("::test_next").outcome is Outcome.PASSED
