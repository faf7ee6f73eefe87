"""A test that takes far more processor time than its limit fails, unless a mark gives the reason."""

from __future__ import annotations

import os
import resource
import time
from types import SimpleNamespace

import pytest
from slow_tests import SlowTests, _listed, judged, limit_of, processor_s


@pytest.fixture
def item(request: pytest.FixtureRequest) -> SimpleNamespace:
    """A test in this file, which has the mark ``mark``."""
    made = SimpleNamespace(nodeid="x.py::test_x", path=request.node.path, mark=None, config=request.config)
    made.get_closest_marker = lambda _name: made.mark
    made.config = SimpleNamespace(stash=pytest.Stash())
    return made


def end(item: SimpleNamespace, took_s: float) -> list[str]:
    """Run the hook around a call that takes so long, and return what it lists."""
    readings = iter([100.0, 100.0 + took_s])
    call = SlowTests(lambda: next(readings)).pytest_runtest_call(item)
    assert next(call) is None
    assert next(call, "ended") == "ended"
    return item.config.stash.get(_listed, [])


@pytest.mark.parametrize(
    ("took_s", "imported", "said"), [(0.25, 0, ""), (1.9, 0, "slow"), (2.1, 0, "fails"), (2.1, 400, "")]
)
def test_only_far_above_the_limit_fails(took_s: float, imported: int, said: str) -> None:
    assert judged(took_s, 0.25, imported) == said


def test_tests_with_ranks_fail_at_eight_times_their_limit() -> None:
    assert [judged(took_s, 5.0, 0) for took_s in (4.0, 39.0, 41.0)] == ["", "slow", "fails"]


def test_a_fast_test_is_not_listed_and_a_slow_one_is(item: SimpleNamespace) -> None:
    assert end(item, 0.2) == []
    assert end(item, 0.5) == ["x.py::test_x took 0.50 s of processor time, more than 0.25 s"]


def test_a_test_far_above_the_limit_fails_unless_it_has_a_reason(item: SimpleNamespace) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"took 2\.50 s of processor time"):
        end(item, 2.5)

    item.mark = pytest.mark.slow("ten thousand tests").mark
    assert end(item, 2.5) == []


def test_a_mark_without_a_reason_is_an_error(item: SimpleNamespace) -> None:
    item.mark = pytest.mark.slow.mark
    with pytest.raises(pytest.UsageError, match="takes one reason"):
        limit_of(item)


def test_folders_without_a_limit_have_none(item: SimpleNamespace) -> None:
    item.path = item.path.parents[1] / "docker" / "test_image.py"
    assert limit_of(item) is None


def test_a_test_may_replace_the_functions_that_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((os, "times"), (resource, "getrusage"), (time, "process_time")):
        monkeypatch.setattr(module, name, lambda *_: 1 / 0)
    assert processor_s() > 0
