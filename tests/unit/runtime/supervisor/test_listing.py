"""What ``disttest list`` shows of tests."""

from disttest.model import TestCase, WorldKind, WorldShape
from disttest.runtime.supervisor.listing import render_list


def case(name, size, kind, **more):
    shape = WorldShape(size=size, backend="gloo") if size else None
    return TestCase(
        nodeid=f"t.py::{name}",
        slug="s",
        classname="t",
        name=name,
        file="t.py",
        line=1,
        suite="t",
        world=shape,
        kind=kind,
        **more,
    )


def test_each_test_says_how_many_ranks_it_has_unless_its_name_does():
    tests = [
        case("test_ordinary", 0, WorldKind.RANKS),
        case("test_world[2xgloo]", 2, WorldKind.RANKS),
        case("TestP::test_p", 4, WorldKind.MAIN),
        case("TestP::test_q", 4, WorldKind.MAIN, reuses_ranks=True),
        case("TestP::test_r", 4, WorldKind.MAIN, new_ranks_because="TestP has its own _run"),
        case("TestT::test_t", 1, WorldKind.THREADS),
    ]

    assert [
        "t.py::test_ordinary",
        "t.py::test_world[2xgloo]",
        "t.py::TestP::test_p  (4 ranks)",
        "t.py::TestP::test_q  (4 ranks, reused)",
        "t.py::TestP::test_r  (4 ranks, new: TestP has its own _run)",
        "t.py::TestT::test_t  (1 thread)",
    ] == render_list(tests, each=True).splitlines()
