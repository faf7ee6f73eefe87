"""What a test may put where pytest looks, of any type and with any ``__repr__``, does not change what it comes to."""

import pytest
from lab import Ended

from disttest.model import Outcome

SUITE = """
    import sys
    import warnings
    import pytest

    class Rude:
        def __repr__(self):
            raise ValueError("no words for it")
        __str__ = __repr__

    class RudeDict(dict):
        def items(self):
            raise ValueError("no items")

    class RudeStream:
        closed = property(lambda self: 1 / 0)
        def write(self, text):
            raise ValueError("no writing")
        def flush(self):
            raise ValueError("no flushing")

    class RudeError(Exception):
        __repr__ = __str__ = Rude.__repr__

    loop = []
    loop.append(loop)

    def each(**objects):
        return pytest.mark.parametrize("odd", list(objects.values()), ids=list(objects))

    odd_objects = each(
        tuple_key={("a", 1): 2}, rude=Rude(), rude_dict=RudeDict(a=1), bytes=b"x", loop=loop, long=10**6000,
        nan=float("nan"), surrogate="\\udc80", type=Rude, set={1},
    )

    @odd_objects
    def test_property(record_property, odd):
        record_property("name", odd)

    def test_property_name(record_property):
        record_property(("a", 1), 1)

    @each(short=("a",), number=5, long=(1, 2, 3))
    def test_malformed_property(request, odd):
        request.node.user_properties.append(odd)

    @each(bytes=b"x", rude=Rude(), none=None)
    def test_section(request, odd):
        request.node.add_report_section("call", "stdout", odd)

    @each(none=None, rude=RudeStream())
    @pytest.mark.parametrize("name", ["stdout", "stderr", "stdin"])
    def test_stream(name, odd):
        setattr(sys, name, odd)

    @odd_objects
    def test_attribute_of_a_report(odd, request):
        request.node.odd = odd

    def test_after_all_that():
        print("fine")

    @pytest.mark.xfail(reason=Rude())
    def test_reason():
        assert 0

    def test_raises():
        raise RudeError

    def test_longrepr():
        assert 0, "told by an object"
"""
CONFTEST = """
    import pytest
    from _pytest._code.code import TerminalRepr

    class RudeText(TerminalRepr):
        def toterminal(self, tw):
            raise ValueError("no words")
        def __str__(self):
            raise ValueError("no words")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        if hasattr(item, "odd"):
            report.odd = item.odd
        if item.name.startswith("test_longrepr") and report.failed and "world" in item.fixturenames:
            report.longrepr = RudeText()
        return report
"""


def as_worlds(suite: str) -> str:
    """The same tests, each on two ranks that stay for the next one."""
    return suite + "\n    pytestmark = [pytest.mark.world_size(2), pytest.mark.usefixtures('world')]\n"


RED = {
    "test_raises": " failed: test_worlds.RudeError: <exception str() failed>",
    "test_longrepr": " failed: <",
}


@pytest.fixture(scope="module")
def ended(module_lab) -> Ended:
    lab = module_lab.write(test_ordinary=SUITE, test_worlds=as_worlds(SUITE), conftest=CONFTEST)
    return lab.run("run", "test_ordinary.py", "test_worlds.py", limit_s=100)


def test_worlds_come_to_what_pytest_itself_makes_of_the_same_tests(ended):
    by_file: dict[str, dict[str, Outcome]] = {"test_ordinary.py": {}, "test_worlds.py": {}}
    for test in ended.run.tests:
        by_file[test.test.file][test.test.name.replace("2xgloo-", "").replace("[2xgloo]", "")] = (
            test.final.outcome
        )

    assert by_file["test_ordinary.py"] == by_file["test_worlds.py"], ended.output
    assert set(RED) == {name for name, outcome in by_file["test_worlds.py"].items() if outcome.is_bad}
    assert 37 == len(by_file["test_worlds.py"])
    assert 1 == ended.exit_code


@pytest.mark.parametrize(("name", "message"), RED.items())
def test_failures_whose_words_can_not_be_had_are_told_all_the_same(ended, name, message):
    (result,) = (
        test.final
        for test in ended.run.tests
        if test.test.file == "test_worlds.py" and test.test.name.startswith(name)
    )
    assert message in result.message


def test_every_report_is_written(ended):
    for name in ("junit.xml", "summary.md", "results.json", "report.html"):
        assert (ended.results / name).stat().st_size > 0
    assert len(ended.run.tests) == len(list(ended.junit().iter("testcase")))
