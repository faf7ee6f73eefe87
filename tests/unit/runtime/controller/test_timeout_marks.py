"""The limit of a test with a timeout mark, as pytest-timeout reads it."""

from types import SimpleNamespace

import numpy
import pytest

from disttest.errors import UsageError
from disttest.limits import NO_LIMIT_S
from disttest.options.run import RunOptions
from disttest.runtime.controller.collect import _timeout_s
from disttest.runtime.controller.time_limits import TimeLimits


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


@pytest.mark.parametrize(
    ("mark", "of_plugin", "asked", "is_of_another"),
    [
        (None, None, False, False),
        (None, 5.0, False, True),
        (None, 5.0, True, False),
        (pytest.mark.timeout(3), None, True, True),
        (pytest.mark.timeout(method="thread"), None, False, False),
        (pytest.mark.timeout(method="thread"), 5.0, False, True),
    ],
)
def test_pytest_timeout_limits_a_test_only_if_it_has_a_limit_for_it(mark, of_plugin, asked, is_of_another):
    config = SimpleNamespace(pluginmanager=SimpleNamespace(hasplugin={"timeout"}.__contains__))
    config._env_timeout = of_plugin
    marks = {} if mark is None else {"timeout": mark.mark}
    item = SimpleNamespace(nodeid="t", get_closest_marker=marks.get, config=config)

    vetoes = TimeLimits({}, asked=asked).pytest_timeout_set_timer(item)

    assert vetoes == (None if is_of_another else True)
