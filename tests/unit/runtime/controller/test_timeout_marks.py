"""The limit of a test with a timeout mark, as pytest-timeout reads it."""

from types import SimpleNamespace

import numpy
import pytest

from disttest.errors import UsageError
from disttest.limits import NO_LIMIT_S
from disttest.options.run import RunOptions
from disttest.runtime.controller.collect import _timeout_s


@pytest.mark.parametrize(
    ("mark", "limit_s"),
    [
        (pytest.mark.timeout(3), 3.0),
        (pytest.mark.timeout(timeout=3), 3.0),
        (pytest.mark.timeout(0), NO_LIMIT_S),
        (pytest.mark.timeout(method="thread"), 7.0),
    ],
)
def test_a_mark_without_a_limit_leaves_that_of_the_run(mark, limit_s):
    item = SimpleNamespace(nodeid="t", get_closest_marker={"timeout": mark.mark}.get)

    assert limit_s == _timeout_s(item, RunOptions(timeout=7.0, given=("timeout",)), None)


@pytest.mark.parametrize("limit", [None, True, -1, float("inf"), 10**400, numpy.array([1.0, 2.0])])
def test_a_mark_with_a_bad_limit_names_its_test(limit):
    item = SimpleNamespace(nodeid="t", get_closest_marker={"timeout": pytest.mark.timeout(limit).mark}.get)

    with pytest.raises(UsageError, match=r"t: timeout mark: .* is not a number of seconds"):
        _timeout_s(item, RunOptions(), None)
